#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// One `key=value` a method understands, as `kvsim list methods` prints it.
struct Parameter {
  std::string name;
  std::string default_value;
  std::string unit;  // "rows", "tokens"; for a choice the words, "paper|released|unbiased"
  std::string help;
};

/// `name:key=value,key=value` as typed on the command line.
struct MethodSpec {
  std::string name;
  std::map<std::string, std::string> values;
};

/// Throws UsageError for a malformed spec.
MethodSpec parse_method_spec(std::string_view text);

/// The values a method runs with: those given, else the defaults. Every getter checks its range and
/// throws UsageError that names method, key, what was found and what was expected.
class Parameters {
 public:
  /// Throws UsageError if `spec` has a key that is not in `known`.
  Parameters(const MethodSpec& spec, const std::vector<Parameter>& known);

  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) const;
  double real(const std::string& key, double low, double high) const;
  /// One of the words that the parameter's `unit` lists, separated by '|'.
  const std::string& choice(const std::string& key) const;

  const std::string& method() const { return method_; }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  const std::string& text(const std::string& key) const;

  std::string method_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::string> units_;
};

}  // namespace kvsim
