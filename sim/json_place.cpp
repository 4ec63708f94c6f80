#include "sim/json_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr std::size_t kMostShown = 20;  // names in a message

/// A step's text: ~1 stands for '/', ~0 for '~', as in every JSON pointer.
std::string decoded(std::string step) {
  for (const auto& [code, character] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}}) {
    for (std::size_t at = 0; (at = step.find(code, at)) != std::string::npos; ++at) {
      step.replace(at, 2, character);
    }
  }
  return step;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string shown(std::vector<std::string> names) {
  const bool all = names.size() <= kMostShown;
  if (!all) names.resize(kMostShown);
  return names.empty() ? "nothing" : fmt::format("{}{}", fmt::join(names, ", "), all ? "" : " ...");
}

std::string keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return shown(std::move(keys));
}

struct Choice {
  std::string key;
  std::string value;
};

/// Those of "[spec=dense]" or "[op=add][phase=value]".
std::vector<Choice> choices_of(const std::string& step) {
  std::vector<Choice> choices;
  for (std::size_t begin = 1; begin < step.size();) {
    const std::size_t next = step.find("][", begin);
    const std::size_t end = next == std::string::npos ? step.size() - 1 : next;
    const std::string choice = step.substr(begin, end - begin);
    const std::size_t equals = std::min(choice.find('='), choice.size());
    choices.push_back(
        {choice.substr(0, equals), choice.substr(std::min(equals + 1, choice.size()))});
    begin = end + 2;
  }
  return choices;
}

bool all_of(const std::vector<Choice>& choices, const Json& item) {
  return std::all_of(choices.begin(), choices.end(), [&item](const Choice& choice) {
    return item.is_object() && item.contains(choice.key) &&
           text_of(item.at(choice.key)) == choice.value;
  });
}

/// What an element has in their place: "multiply value".
std::string values_of(const std::vector<Choice>& choices, const Json& item) {
  std::vector<std::string> values;
  for (const Choice& choice : choices) {
    const bool has = item.is_object() && item.contains(choice.key);
    values.push_back(has ? text_of(item.at(choice.key)) : "no " + choice.key);
  }
  return fmt::format("{}", fmt::join(values, " "));
}

}  // namespace

JsonPlace::JsonPlace(std::string pointer) : pointer_(std::move(pointer)) {
  if (pointer_.empty() || pointer_[0] != '/') {
    fail<RuntimeError>("found the place '{}', expected a JSON pointer that begins with /",
                       pointer_);
  }
  for (std::size_t begin = 1; begin <= pointer_.size();) {
    const std::size_t end = std::min(pointer_.find('/', begin), pointer_.size());
    steps_.push_back(decoded(pointer_.substr(begin, end - begin)));
    begin = end + 1;
  }
}

std::string JsonPlace::before(std::size_t steps) const {
  std::string text;
  for (std::size_t i = 0; i < steps; ++i) text += "/" + steps_[i];
  return text.empty() ? "the document" : text;
}

const Json& JsonPlace::find(const Json& document) const {
  const Json* place = &document;
  for (std::size_t i = 0; i < steps_.size(); ++i) place = &step(*place, i);
  return *place;
}

const Json& JsonPlace::step(const Json& parent, std::size_t index) const {
  const std::string& name = steps_[index];
  if (parent.is_array()) {
    return name.starts_with("[") && name.ends_with("]") ? chosen(parent, index)
                                                        : element(parent, index);
  }
  if (!parent.is_object()) {
    fail<RuntimeError>("{} is of type {}, expected an object or a list with '{}'", before(index),
                       parent.type_name(), name);
  }
  const auto found = parent.find(name);
  if (found == parent.end()) {
    fail<RuntimeError>("{} has no '{}', found {}", before(index), name, keys_of(parent));
  }
  if (found->is_null()) {
    const auto reason = parent.find(name + "_reason");
    fail<RuntimeError>("{} is null{}", before(index + 1),
                       reason == parent.end() ? "" : ": " + text_of(*reason));
  }
  return *found;
}

const Json& JsonPlace::element(const Json& list, std::size_t index) const {
  const std::string& name = steps_[index];
  std::size_t number = 0;
  const char* end = name.data() + name.size();
  const auto [used, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || used != end || number >= list.size()) {
    fail<RuntimeError>("{} is a list of {}, found '{}', expected [key=value] or a number below {}",
                       before(index), list.size(), name, list.size());
  }
  return list[number];
}

const Json& JsonPlace::chosen(const Json& list, std::size_t index) const {
  const std::vector<Choice> choices = choices_of(steps_[index]);
  const Json* found = nullptr;
  std::size_t count = 0;
  std::vector<std::string> others;
  for (const Json& item : list) {
    if (all_of(choices, item)) {
      found = &item;
      ++count;
    } else {
      others.push_back(values_of(choices, item));
    }
  }
  if (count != 1) {
    fail<RuntimeError>("{} has {} elements with {}, expected one; others have {}", before(index),
                       count, steps_[index], shown(std::move(others)));
  }
  return *found;
}

}  // namespace kvsim
