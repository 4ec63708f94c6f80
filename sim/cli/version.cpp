#include "sim/cli/version.h"

// The build defines both for this file alone, so that a new commit recompiles nothing else.
#ifndef KVSIM_VERSION
#define KVSIM_VERSION "0.1.0"
#endif
#ifndef KVSIM_COMMIT
#define KVSIM_COMMIT "unknown"
#endif

namespace kvsim {

std::string version() { return KVSIM_VERSION; }

std::string commit() { return KVSIM_COMMIT; }

}  // namespace kvsim
