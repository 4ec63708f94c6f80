#include "sim/method_table.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace kvsim {
namespace {

std::vector<std::string> header(const Json& methods) {
  std::vector<std::string> names{""};
  for (const Json& method : methods) names.push_back(method.at("spec").get<std::string>());
  return names;
}

}  // namespace

std::string number_text(const Json& number, int digits) {
  if (number.is_null()) return "-";
  if (number.is_number_integer()) return fmt::format("{}", number.get<std::int64_t>());
  return fmt::format("{:.{}g}", number.get<double>(), digits);
}

std::string interval_text(const Json& estimate, int digits) {
  if (estimate.is_null()) return "-";
  return fmt::format("{} [{}, {}]", number_text(estimate.at("value"), digits),
                     number_text(estimate.at("low"), digits),
                     number_text(estimate.at("high"), digits));
}

MethodTable::MethodTable(const Json& methods) : methods_(methods), table_(header(methods)) {}

void MethodTable::row(const std::string& name, const Cell& cell) {
  std::vector<std::string> cells{name};
  for (const Json& method : methods_) cells.push_back(cell(method));
  table_.add_row(std::move(cells));
}

void MethodTable::number(const std::string& name, const std::string& pointer, int digits) {
  row(name, [&](const Json& method) {
    return number_text(method.at(Json::json_pointer(pointer)), digits);
  });
}

void MethodTable::interval(const std::string& name, const std::string& pointer) {
  row(name, [&](const Json& method) {
    return interval_text(method.at(Json::json_pointer(pointer)));
  });
}

void MethodTable::accelerators() {
  if (methods_.empty()) return;
  const Json& first = methods_[0].at("accelerators");
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::string name = fmt::format("{} at {} nm, {}", first[i].at("name").get<std::string>(),
                                         number_text(first[i].at("node_nm")),
                                         first[i].at("memory").get<std::string>());
    const std::string base = fmt::format("/accelerators/{}", i);
    interval(name + ": energy, pJ", base + "/total_pj");
    interval(name + ": datapath only, pJ", base + "/datapath_pj");
    interval(name + ": time, us", base + "/predicted_us");
  }
}

}  // namespace kvsim
