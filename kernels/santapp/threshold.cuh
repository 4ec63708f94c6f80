#pragma once

#include <cstdint>

#include "kernels/santapp/candidates.cuh"
#include "kernels/santapp/lists.cuh"

// Which teams each head draws: those whose priority is above that of the first that is not drawn,
// κ. All CTAs of a (sequence, KV head) find it for themselves from the candidates of all tiles.
// Where a tile may have more teams above κ than it named, the CTAs count digits of all priorities.

namespace kvsim::santapp {

/// Marks a tile's team as drawn: φ becomes ln c.
__device__ inline void mark_drawn(const TeamCta& cta, int own, int index, int head, float kappa) {
  const TileView tile = cta.tile(own);
  float& weight = tile.weights(head)[index];
  weight = log_inclusion(weight - kappa);
  atomicOr(tile.heads() + index, 1u << head);
  const DeviceStep& step = cta.a.step;
  if (step.bounds == nullptr) return;
  const int team = cta.team_of(cta.tile_number(own), index);
  step.bounds[cta.head_row(head) * step.bound_stride + step.bound_stride / 2 + team] = weight;
}

template <typename Shape>
class ThresholdSearch {
 public:
  __device__ ThresholdSearch(const TeamCta& cta, char* shared, std::uint32_t launch)
      : cta_(cta),
        a_(cta.a),
        candidates_(reinterpret_cast<device::Tagged*>(shared)),
        thresholds_(reinterpret_cast<HeadThreshold*>(shared + Shape::kThresholds)),
        launch_(launch) {}

  /// By all threads, when the CTA's own candidates are named.
  __device__ void run() const {
    const int count = a_.tiles * a_.list;
    const int at_once =
        min(a_.group, Shape::kFront / (count * static_cast<int>(sizeof(device::Tagged))));
#pragma unroll 1
    for (int first = 0; first < a_.group; first += at_once) {
      const int heads = min(at_once, a_.group - first);
      device::sync_workers<Shape::kThreads>();  // what lay there is no longer needed
      collect(first, heads, count);
      device::sync_workers<Shape::kThreads>();
#pragma unroll 1
      for (int h = cta_.warp; h < heads; h += Shape::kWarps) {
        find(first + h, candidates_ + h * count, count);
        if (thresholds_[first + h].open == 0) mark_named(first + h, candidates_ + h * count);
      }
    }
    device::sync_workers<Shape::kThreads>();
  }

 private:
  static constexpr int kAtOnce = 4;  // pairs that a thread asks for
  static constexpr int kHeld = 8;    // candidates that a lane keeps in registers

  /// The lists of some heads of all tiles, each head's one after the other.
  __device__ void collect(int first, int heads, int count) const {
    const int all = heads * count / 2;  // pairs of candidates
#pragma unroll 1
    for (int base = static_cast<int>(threadIdx.x); base < all; base += kAtOnce * Shape::kThreads) {
      const device::TaggedPair* source[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        source[j] = pair_of(min(base + j * Shape::kThreads, all - 1), first, count / 2);
      }
      device::TaggedPair pair[kAtOnce];
      bool complete = false;
      while (!complete) {  // all their loads are under way at once
        complete = true;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) pair[j] = device::peek(source[j]);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          complete = complete && is_of(pair[j].a, launch_) && is_of(pair[j].b, launch_);
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * Shape::kThreads;
        if (i < all) reinterpret_cast<device::TaggedPair*>(candidates_)[i] = pair[j];
      }
    }
  }

  /// Pair `i` of those of heads `first` and on, each of which has `of_head`.
  __device__ const device::TaggedPair* pair_of(int i, int first, int of_head) const {
    const int head = i / of_head;
    const int rest = i - head * of_head;
    const int tile = rest / (a_.list / 2);
    return reinterpret_cast<const device::TaggedPair*>(
               list_of(a_, cta_.number, tile, first + head)) +
           (rest - tile * (a_.list / 2));
  }

  /// By one warp: the first candidate that is not drawn.
  __device__ void find(int head, const device::Tagged* list, int count) const {
    const HeadThreshold threshold = find_threshold<kHeld>(
        count, a_.draws + 1, cta_.lane, [&](int at) { return list[at].word; },
        [&](int at) { return team_at(list, at); });
    const bool open = threshold.open != 0 || may_hide(list, threshold);
    if (cta_.lane == 0) thresholds_[head] = {threshold.key, threshold.team, open ? 1 : 0, 0};
    __syncwarp();
  }

  __device__ std::int32_t team_at(const device::Tagged* list, int at) const {
    return cta_.team_of(at / a_.list, index_of(list[at]));
  }

  /// Whether a tile has named none that is not drawn: it may have more above.
  __device__ bool may_hide(const device::Tagged* list, const HeadThreshold& threshold) const {
    if (a_.list >= kTileTeams || a_.list > a_.draws) return false;
    bool hides = false;
#pragma unroll 1
    for (int tile = cta_.lane; tile < a_.tiles; tile += device::kWarp) {
      bool all = true;
#pragma unroll 1
      for (int i = tile * a_.list; i < (tile + 1) * a_.list && all; ++i) {
        all = is_above(list[i].word, team_at(list, i), threshold);
      }
      hides = hides || all;
    }
    return __any_sync(0xffffffffu, hides);
  }

  /// By one warp: the head's candidates of own tiles.
  __device__ void mark_named(int head, const device::Tagged* list) const {
    const HeadThreshold threshold = thresholds_[head];
    const float kappa = device::value_of(threshold.key);
#pragma unroll 1
    for (int i = cta_.lane; i < a_.tiles_per_cta * a_.list; i += device::kWarp) {
      const int own = i / a_.list;
      const int at = cta_.tile_number(own) * a_.list + (i - own * a_.list);
      if (!is_above(list[at].word, team_at(list, at), threshold)) continue;
      mark_drawn(cta_, own, index_of(list[at]), head, kappa);
    }
  }

  TeamCta cta_;
  const SantappArguments& a_;
  device::Tagged* candidates_;  // [heads at once, tiles, list]
  HeadThreshold* thresholds_;   // [group]
  std::uint32_t launch_;
};

}  // namespace kvsim::santapp
