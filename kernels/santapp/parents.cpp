#include "kernels/santapp/parents.h"

#include <algorithm>

#include "core/error.h"

namespace kvsim::santapp {
namespace {

Partition spans(std::int64_t keys, int tokens) {
  Partition result;
  for (std::int64_t i = 0; i < keys; ++i) result.members.push_back(static_cast<std::int32_t>(i));
  for (std::int64_t i = 0; i < keys; i += tokens) {
    result.starts.push_back(static_cast<std::int32_t>(i));
  }
  result.starts.push_back(static_cast<std::int32_t>(keys));
  return result;
}

}  // namespace

Partition make_parents(const CacheView& prompt, Grouping grouping, int tokens) {
  if (grouping == Grouping::kContiguous) return spans(prompt.k.rows, tokens);
  fail<RuntimeError>("santapp: only grouping=contiguous so far");
}

}  // namespace kvsim::santapp
