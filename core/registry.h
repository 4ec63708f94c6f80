#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace kvsim {

/// Named things that register themselves from their own file (methods, verbs, plots). Lookup of an
/// unknown name is a UsageError that lists the known ones.
template <typename T>
class Registry {
 public:
  /// Messages list the names of items that `shown` accepts, all if it is empty.
  explicit Registry(std::string what, std::function<bool(const T&)> shown = {})
      : what_(std::move(what)), shown_(std::move(shown)) {}

  bool add(std::string name, T item) {
    KVSIM_CHECK(items_.emplace(std::move(name), std::move(item)).second);
    return true;
  }

  const T& at(std::string_view name) const {
    const auto found = items_.find(name);
    if (found == items_.end()) {
      fail<UsageError>("unknown {} '{}', expected one of: {}", what_, name,
                       fmt::join(shown_names(), ", "));
    }
    return found->second;
  }

  /// Sorted by name, whatever the order of registration.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, item] : items_) result.push_back(name);
    return result;
  }

  std::vector<std::string> shown_names() const {
    std::vector<std::string> result;
    for (const auto& [name, item] : items_) {
      if (!shown_ || shown_(item)) result.push_back(name);
    }
    return result;
  }

 private:
  std::string what_;
  std::function<bool(const T&)> shown_;
  std::map<std::string, T, std::less<>> items_;
};

}  // namespace kvsim

// For register macros: a name of its own for each line.
#define KVSIM_CONCAT_AGAIN(a, b) a##b
#define KVSIM_CONCAT(a, b) KVSIM_CONCAT_AGAIN(a, b)
