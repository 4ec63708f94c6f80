#pragma once

#include <string>
#include <vector>

#include "sim/json.h"

namespace kvsim {

/// A place in a JSON document: a JSON pointer in which a step into a list may also be written
/// [key=value], the one element whose member `key` has that value, or [key=value][key=value]
/// ("/methods/[spec=santa-prop]/time/predicted_us"). So a place does not depend on an order.
class JsonPlace {
 public:
  /// Throws RuntimeError unless the text begins with '/'.
  explicit JsonPlace(std::string pointer);

  const std::string& pointer() const { return pointer_; }
  /// Throws RuntimeError that says up to where the document went along, what it has there, and what
  /// was expected; a null gives the document's own reason.
  const Json& find(const Json& document) const;

 private:
  const Json& step(const Json& parent, std::size_t index) const;
  const Json& element(const Json& list, std::size_t index) const;
  const Json& chosen(const Json& list, std::size_t index) const;
  /// The pointer's first `steps` steps, for messages.
  std::string before(std::size_t steps) const;

  std::string pointer_;
  std::vector<std::string> steps_;
};

}  // namespace kvsim
