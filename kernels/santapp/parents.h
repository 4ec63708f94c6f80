#pragma once

#include "kernels/method.h"
#include "kernels/santapp/partition.h"

namespace kvsim::santapp {

/// How the prompt's keys come into parents (section 2.2, appendix B.5): by k-means of the keys, as
/// spans of neighbouring tokens, or by k-means of what the last prompt queries score them.
enum class Grouping { kKeys, kContiguous, kProbes };

/// Parents of about `tokens` keys each. A short last span is a parent as others are. Throws
/// RuntimeError if `kProbes` finds no probe queries.
Partition make_parents(const CacheView& prompt, Grouping grouping, int tokens);

}  // namespace kvsim::santapp
