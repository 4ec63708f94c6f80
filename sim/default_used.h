#pragma once

#include <string>

namespace kvsim {

/// A default that decided a result, so that the output can name it.
struct DefaultUsed {
  std::string option;  // "--gpu"
  std::string value;
};

}  // namespace kvsim
