#pragma once

#include <string>

namespace kvsim {

/// Why gnuplot cannot be used here, and which package would help; empty if it can.
std::string gnuplot_problem();

/// Runs gnuplot on a script. Throws RuntimeError if gnuplot is not installed, if this build has no
/// gnuplot-iostream, or with gnuplot's own message if it fails.
void run_gnuplot(const std::string& script);

}  // namespace kvsim
