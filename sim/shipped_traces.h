#pragma once

#include <string>

namespace kvsim {

/// The folder of the traces that come with the source: `given`, or, if that is empty,
/// traces/samples of the tree that the program was built from, or else of the current folder.
/// Throws RuntimeError that says where it looked.
std::string shipped_traces(const std::string& given);

}  // namespace kvsim
