#pragma once

#include <string>
#include <vector>

#include "sim/json.h"

namespace kvsim {

/// A number with its 90 % interval, as pictures draw it.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
};

/// A place in a JSON document that knows its path, so that whatever is missing or of a wrong type
/// is a RuntimeError like "run.h5: methods[2].time is missing". The document must outlive its
/// nodes.
class JsonNode {
 public:
  JsonNode(const Json& json, std::string file) : json_(&json), file_(std::move(file)) {}

  /// A member that must be there and must not be null; the error gives the document's own reason.
  JsonNode at(const std::string& key) const;
  /// A member that is there and not null.
  bool has(const std::string& key) const;
  std::vector<JsonNode> items() const;

  const Json& json() const { return *json_; }
  double number() const;
  bool boolean() const;
  std::string text() const;
  /// {value, low, high, …}.
  Interval interval() const;

  [[noreturn]] void fail_with(const std::string& what) const;

 private:
  JsonNode(const Json& json, std::string file, std::string path);
  [[noreturn]] void fail_type(const std::string& expected) const;

  const Json* json_;
  std::string file_;
  std::string path_;  // "methods[2].time"; empty at the root
};

}  // namespace kvsim
