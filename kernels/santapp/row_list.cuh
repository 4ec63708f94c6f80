#pragma once

#include <cstdint>

#include "kernels/santapp/arguments.cuh"

// The rows that a CTA attends to, a part of the list at a time: members of its tiles' teams that
// any head draws, and its share of the rows that all heads read, sixteen in turn with the other
// CTAs.

namespace kvsim::santapp {

template <typename Shape>
class RowList {
 public:
  /// Which heads attend to a row, and ln c of each.
  struct Drawn {
    TileView tile;
    int index;
    std::uint32_t heads;
    bool exact;

    __device__ bool has(int head) const { return (heads >> head & 1) != 0; }
    __device__ float log_inclusion(int head) const {
      return exact ? 0.0f : tile.weights(head)[index];
    }
  };

  __device__ RowList(const TeamCta& cta, char* shared)
      : cta_(cta),
        a_(cta.a),
        rows_(reinterpret_cast<ListedRow*>(shared + Shape::kRows)),
        scan_(reinterpret_cast<std::int32_t*>(shared + Shape::kScan)),
        first_exact_(cta.takes_all ? 0 : cta.prompt),
        context_(cta.a.step.contexts[static_cast<std::size_t>(cta.team.sequence)]) {}

  /// Lists rows `base` and on, up to kListed, padded to whole units; by all threads, which
  /// return the rows there are behind `base`.
  __device__ int fill(int base) const {
    const int drawn = cta_.takes_all ? 0 : fill_drawn(base);
    const int units = (context_ - first_exact_ + device::kUnitTokens - 1) / device::kUnitTokens;
    const int own = units > cta_.rank ? (units - cta_.rank - 1) / cta_.ctas + 1 : 0;
    const int total = drawn + own * device::kUnitTokens;
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kListed; i += Shape::kThreads) {
      if (base + i >= drawn) rows_[i] = exact_row(base + i - drawn, own * device::kUnitTokens);
    }
    device::sync_workers<Shape::kThreads>();
    return total - base;
  }

  __device__ const ListedRow* rows() const { return rows_; }

  __device__ Drawn drawn_by(const ListedRow& listed) const {
    const bool exact = listed.team == kAllHeads;
    const int team = exact ? 0 : static_cast<int>(listed.team);
    const TileView tile = cta_.tile(team / kTileTeams);
    const int index = team % kTileTeams;
    const std::uint32_t heads = listed.row == kNoRow ? 0u
                                : exact              ? (1u << a_.group) - 1
                                                     : tile.heads()[index];
    return {tile, index, heads, exact};
  }

 private:
  /// Members of drawn teams; returns how many there are in all.
  __device__ int fill_drawn(int base) const {
    int before = 0;
#pragma unroll 1
    for (int first = 0; first < a_.tiles_per_cta * kTileTeams; first += Shape::kThreads) {
      const int team = first + static_cast<int>(threadIdx.x);
      const TileView tile = cta_.tile(team / kTileTeams);
      const int index = team % kTileTeams;
      const int size = tile.heads()[index] != 0 ? tile.sizes()[index] : 0;
      int at = before - base;
      before += scan(size, at);
      const int begin = size > 0 ? tile.begins()[index] : 0;
      for (int i = max(0, -at); i < size && at + i < Shape::kListed; ++i) {
        rows_[at + i] = {begin + i, static_cast<std::uint32_t>(team)};
      }
    }
    return before;
  }

  /// Adds to `at` the sizes of earlier threads; returns the sum of all.
  __device__ int scan(int size, int& at) const {
    const int before = device::lanes_before(size, cta_.lane);
    device::sync_workers<Shape::kThreads>();  // the last sums are read
    if (cta_.lane == device::kWarp - 1) scan_[cta_.warp] = before + size;
    device::sync_workers<Shape::kThreads>();
    at += before;
    int sum = 0;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      if (w < cta_.warp) at += scan_[w];
      sum += scan_[w];
    }
    return sum;
  }

  /// Number `i` of the `count` rows that are read for certain.
  __device__ ListedRow exact_row(int i, int count) const {
    const int unit = cta_.rank + i / device::kUnitTokens * cta_.ctas;
    const int row = first_exact_ + unit * device::kUnitTokens + i % device::kUnitTokens;
    if (i >= count || row >= context_) return {kNoRow, kAllHeads};
    return {row < cta_.prompt ? row : ~row, kAllHeads};
  }

  TeamCta cta_;
  const SantappArguments& a_;
  ListedRow* rows_;     // [kListed]
  std::int32_t* scan_;  // [warps]
  int first_exact_;
  int context_;
};

}  // namespace kvsim::santapp
