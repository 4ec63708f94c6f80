#pragma once

#include <cstdint>

#include "kernels/parameters.h"
#include "kernels/santapp/stored_teams.h"

namespace kvsim::santapp {

/// The method's parameters, for the CPU's rule, the kernel and the cost model alike.
struct Settings {
  /// Throws UsageError.
  explicit Settings(const Parameters& p);

  std::int64_t samples;  // S: keys that a head nominally reads
  TeamSettings teams;    // guided sampling draws parents as they are: one team each
  bool routes_by_mean;   // else by leaders
  int guided;            // keys drawn of each parent drawn; 0: whole teams
  bool published;        // the implementation

  /// Keys read of a team that is drawn, nominally.
  int nominal_keys() const { return guided > 0 ? guided : teams.parent / teams.representatives; }
  /// K: teams that a head draws.
  std::int64_t draws() const { return samples / nominal_keys(); }
};

}  // namespace kvsim::santapp
