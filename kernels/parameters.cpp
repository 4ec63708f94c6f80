#include "kernels/parameters.h"

#include <charconv>
#include <cmath>

#include "core/error.h"

namespace kvsim {
namespace {

template <typename T>
bool parse_whole(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end;
}

/// Calls `visit` with each piece of `text` between separators.
template <typename Visit>
void split(std::string_view text, char separator, Visit visit) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    visit(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

MethodSpec parse_method_spec(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  MethodSpec spec{.name = std::string(text.substr(0, colon)), .values = {}};
  if (spec.name.empty()) fail<UsageError>("method '{}': the name is empty", text);
  if (colon == text.size()) return spec;
  split(text.substr(colon + 1), ',', [&](std::string_view item) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      fail<UsageError>("method '{}': found '{}', expected key=value", text, item);
    }
    const std::string key(item.substr(0, equals));
    if (!spec.values.emplace(key, item.substr(equals + 1)).second) {
      fail<UsageError>("method '{}': key '{}' is given twice", text, key);
    }
  });
  return spec;
}

Parameters::Parameters(const MethodSpec& spec, const std::vector<Parameter>& known)
    : method_(spec.name) {
  std::vector<std::string> names;
  for (const Parameter& parameter : known) {
    values_[parameter.name] = parameter.default_value;
    units_[parameter.name] = parameter.unit;
    names.push_back(parameter.name);
  }
  for (const auto& [key, value] : spec.values) {
    if (!values_.contains(key)) {
      fail<UsageError>("method '{}': unknown key '{}', expected one of: {}", method_, key,
                       fmt::join(names, ", "));
    }
    values_[key] = value;
  }
}

const std::string& Parameters::text(const std::string& key) const {
  const auto found = values_.find(key);
  KVSIM_CHECK(found != values_.end());
  return found->second;
}

std::int64_t Parameters::integer(const std::string& key, std::int64_t low,
                                 std::int64_t high) const {
  std::int64_t value = 0;
  if (!parse_whole(text(key), value) || value < low || value > high) {
    fail<UsageError>("method '{}': {}={}, expected an integer from {} to {}", method_, key,
                     text(key), low, high);
  }
  return value;
}

double Parameters::real(const std::string& key, double low, double high) const {
  double value = 0;
  if (!parse_whole(text(key), value) || !(value >= low) || !(value <= high)) {
    fail<UsageError>("method '{}': {}={}, expected a number from {} to {}", method_, key, text(key),
                     low, high);
  }
  return value;
}

const std::string& Parameters::choice(const std::string& key) const {
  bool found = false;
  split(units_.at(key), '|', [&](std::string_view word) { found = found || word == text(key); });
  if (!found) {
    fail<UsageError>("method '{}': {}={}, expected one of: {}", method_, key, text(key),
                     units_.at(key));
  }
  return text(key);
}

}  // namespace kvsim
