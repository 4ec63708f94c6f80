#pragma once

#include <cstdint>

#include "kernels/parameters.h"
#include "kernels/santapp/parents.h"

namespace kvsim::santapp {

/// The method's parameters, for the CPU's rule, the kernel and the cost model alike.
struct Settings {
  /// Throws UsageError.
  explicit Settings(const Parameters& p);

  std::int64_t samples;  // S: keys that a head nominally reads
  int parent;            // P: keys of a parent
  int representatives;   // R: teams of a parent, at most
  Grouping grouping;
  bool routes_by_mean;  // else by leaders
  int guided;           // keys drawn of each parent drawn; 0: whole teams
  bool published;       // the implementation

  /// Teams of a parent; guided sampling draws parents as they are.
  int teams_of_parent() const { return guided > 0 ? 1 : representatives; }
  /// K: teams that a head draws.
  std::int64_t draws() const { return samples / (guided > 0 ? guided : parent / representatives); }
};

}  // namespace kvsim::santapp
