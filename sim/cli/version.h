#pragma once

#include <string>

namespace kvsim {

/// "0.1.0".
std::string version();
/// The commit the program was built from, "unknown" if the build did not say.
std::string commit();

}  // namespace kvsim
