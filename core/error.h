#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace kvsim {

/// A wrong flag, name or value on the command line: exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file, device or anything else that fails at run time: exit status 1.
class RuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws `E` (UsageError or RuntimeError) with a formatted message.
template <typename E, typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvsim

/// An invariant of ours: failing it is a bug, not a user's mistake.
#define KVSIM_CHECK(condition)                                                                     \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ::kvsim::fail<::kvsim::RuntimeError>("{}:{}: internal check failed: {}", __FILE__, __LINE__, \
                                           #condition);                                            \
    }                                                                                              \
  } while (false)
