#pragma once

#include <cstdint>
#include <vector>

#include "kernels/santapp/partition.h"
#include "traces/rows_view.h"

namespace kvsim::santapp {

/// Keys in teams, each with one of its keys as its leader; the teams of a parent follow each other.
struct Teams {
  Partition partition;
  std::vector<std::int32_t> leaders;  // [teams]

  friend bool operator==(const Teams&, const Teams&) = default;
};

/// Splits parents into teams of keys that are near each other (section 2.2): a parent's first
/// leader is the key nearest its mean, each next one the key farthest from those before, up to
/// `representatives`; keys join their nearest leader. Ties go to the lower key, or the leader that
/// was found first; leaders lead their own team.
Teams make_teams(const RowsView& keys, const Partition& parents, int representatives);

}  // namespace kvsim::santapp
