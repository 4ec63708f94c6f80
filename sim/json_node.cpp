#include "sim/json_node.h"

#include <utility>

#include "core/error.h"

namespace kvsim {

JsonNode::JsonNode(const Json& json, std::string file, std::string path)
    : json_(&json), file_(std::move(file)), path_(std::move(path)) {}

JsonNode JsonNode::at(const std::string& key) const {
  if (!json_->is_object()) fail_type("an object");
  const std::string path = path_.empty() ? key : path_ + "." + key;
  const auto found = json_->find(key);
  if (found == json_->end()) fail<RuntimeError>("{}: {} is missing", file_, path);
  if (found->is_null()) {
    const auto reason = json_->find(key + "_reason");
    if (reason == json_->end() || !reason->is_string()) {
      fail<RuntimeError>("{}: {} is null", file_, path);
    }
    fail<RuntimeError>("{}: {} is null: {}", file_, path, reason->get<std::string>());
  }
  return {*found, file_, path};
}

bool JsonNode::has(const std::string& key) const {
  if (!json_->is_object()) return false;
  const auto found = json_->find(key);
  return found != json_->end() && !found->is_null();
}

std::vector<JsonNode> JsonNode::items() const {
  if (!json_->is_array()) fail_type("an array");
  std::vector<JsonNode> nodes;
  for (std::size_t i = 0; i < json_->size(); ++i) {
    nodes.push_back(JsonNode((*json_)[i], file_, fmt::format("{}[{}]", path_, i)));
  }
  return nodes;
}

double JsonNode::number() const {
  if (!json_->is_number()) fail_type("a number");
  return json_->get<double>();
}

bool JsonNode::boolean() const {
  if (!json_->is_boolean()) fail_type("true or false");
  return json_->get<bool>();
}

std::string JsonNode::text() const {
  if (!json_->is_string()) fail_type("a string");
  return json_->get<std::string>();
}

Interval JsonNode::interval() const {
  return {at("value").number(), at("low").number(), at("high").number()};
}

void JsonNode::fail_with(const std::string& what) const {
  fail<RuntimeError>("{}: {}{}{}", file_, path_, path_.empty() ? "" : ": ", what);
}

void JsonNode::fail_type(const std::string& expected) const {
  fail<RuntimeError>("{}: {} is of type {}, expected {}", file_,
                     path_.empty() ? "the document" : path_, json_->type_name(), expected);
}

}  // namespace kvsim
