#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// Runs this very program on `arguments` and returns what it wrote to standard output; its standard
/// error is ours. Throws RuntimeError if it cannot be started or does not exit with 0.
std::string run_this_program(const std::vector<std::string>& arguments);

}  // namespace kvsim
