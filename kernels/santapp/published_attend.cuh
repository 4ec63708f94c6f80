#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/ordered_key.cuh"
#include "kernels/santapp/attend.cuh"
#include "kernels/santapp/published.cuh"
#include "kernels/santapp/published_sizes.h"

// The fourth launch: the members of the union's teams and the rows that are read for certain, one
// after the other, are cut into equal runs, one for each CTA of the group. The fifth adds up what
// the CTAs have.

namespace kvsim::santapp {

template <int D, int kHeads8Value, bool kLarge>
struct AttendShape {
  static constexpr int kDim = D;
  static constexpr int kHeads8 = kHeads8Value;
  using Tile = device::UnitTile<D>;

  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * device::kWarp;
  /// 64 KB are under way, or 32 KB; two stages hold a unit of members, K and V.
  static constexpr int kPairs =
      std::max(1, (kLarge ? 64 : 32) * 1024 / (2 * kWarps * Tile::kBytes));
  static constexpr int kStages = 2 * kPairs;
  static constexpr int kListed = 256;  // rows of a part of the list
  using Merge = device::DenseMerge<D, kHeads8, kWarps>;

  /// Sums that are merged take the ring's place.
  static constexpr int kFront =
      std::max(kWarps * kStages * Tile::kBytes, 4 * kWarps * Merge::kWarpFloats);
  static constexpr int kWeights = kFront;
  static constexpr int kRows = kWeights + Merge::kWeightBytes;
  static constexpr int kCorrections = kRows + kListed * static_cast<int>(sizeof(ListedRow));
  static constexpr int kSharedBytes = kCorrections + 4 * 8 * kHeads8 * kListed;
  static_assert(kCorrections % 16 == 0);
};

/// A CTA, and which of the group's rows are its own.
struct AttendCta : PublishedCta {
  int drawn;  // rows of the union, which lie first
  int all;    // its rows and those for certain
  int begin;
  int end;

  __device__ explicit AttendCta(const PublishedArguments& arguments) : PublishedCta(arguments) {
    const int context = a.step.contexts[static_cast<std::size_t>(team.sequence)];
    drawn = takes_all ? 0 : a.union_sizes[number].rows;
    all = drawn + context - (takes_all ? 0 : prompt);
    const int units = (all + device::kUnitTokens - 1) / device::kUnitTokens;
    const auto cut = [&](unsigned cta) {
      const auto unit =
          static_cast<int>(std::int64_t{units} * cta / static_cast<unsigned>(a.splits));
      return min(all, unit * device::kUnitTokens);
    };
    begin = cut(blockIdx.x);
    end = cut(blockIdx.x + 1);
  }

  /// Of the group's partial results.
  __device__ std::int64_t slot() const { return number * a.splits + blockIdx.x; }
};

/// The rows of a CTA, a part of the list at a time.
template <typename Shape>
class UnionRows {
 public:
  /// Which heads attend to a row, and ln c of each.
  struct Drawn {
    const float* corrections;  // null: 0
    int heads;

    __device__ bool has(int head) const {
      return head < heads && (corrections == nullptr || corrections[head] < INFINITY);
    }
    __device__ float log_inclusion(int head) const {
      return corrections == nullptr ? 0.0f : corrections[head];
    }
  };

  __device__ UnionRows(const AttendCta& cta, char* shared)
      : cta_(cta),
        a_(cta.a),
        rows_(reinterpret_cast<ListedRow*>(shared + Shape::kRows)),
        corrections_(reinterpret_cast<float*>(shared + Shape::kCorrections)) {}

  /// Lists rows `base` and on, up to kListed, padded to whole units; by all threads, which return
  /// the rows there are behind `base`.
  __device__ int fill(int base) const {
    const int first = cta_.begin + base;
    const int last = min(first + Shape::kListed, cta_.end);
    if (first < cta_.drawn) fill_drawn(first, min(last, cta_.drawn));
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kListed; i += Shape::kThreads) {
      if (first + i >= cta_.drawn || first + i >= last) rows_[i] = exact_row(first + i, last);
    }
    device::sync_workers<Shape::kThreads>();
    return cta_.end - first;
  }

  __device__ const ListedRow* rows() const { return rows_; }

  __device__ Drawn drawn_by(const ListedRow& listed) const {
    if (listed.row == kNoRow) return {nullptr, 0};
    if (listed.team == kAllHeads) return {nullptr, a_.group};
    return {corrections_ + listed.team * kWidth, a_.group};
  }

 private:
  static constexpr int kWidth = 8 * Shape::kHeads8;

  /// A thread takes a team; its corrections lie where its first row does. `first` begins a unit.
  __device__ void fill_drawn(int first, int last) const {
    const UnionTeam* teams = a_.union_teams + cta_.number * (a_.most_union + 1);
    const float* corrections = a_.corrections + cta_.number * a_.most_union * kWidth;
    const int count = a_.union_sizes[cta_.number].teams;
    const int unit = first / device::kUnitTokens;
    const int from = a_.union_units[cta_.number * a_.most_units + unit];
#pragma unroll 1
    for (int t = from + static_cast<int>(threadIdx.x); t < count; t += Shape::kThreads) {
      const UnionTeam team = teams[t];
      if (team.rows_before >= last) break;
      const int begin = max(team.rows_before, first);
      const int end = min(teams[t + 1].rows_before, last);
      const int place = begin - first;
      const auto* source = reinterpret_cast<const float4*>(corrections + std::int64_t{t} * kWidth);
      auto* target = reinterpret_cast<float4*>(corrections_ + place * kWidth);
#pragma unroll
      for (int i = 0; i < kWidth / 4; ++i) target[i] = source[i];
      for (int row = begin; row < end; ++row) {
        rows_[row - first] = {team.begin + row - team.rows_before,
                              static_cast<std::uint32_t>(place)};
      }
    }
  }

  /// Number `i` of all rows, if it is before `last`.
  __device__ ListedRow exact_row(int i, int last) const {
    if (i >= last) return {kNoRow, kAllHeads};
    const int row = i - cta_.drawn + (cta_.takes_all ? 0 : cta_.prompt);
    return {row < cta_.prompt ? row : ~row, kAllHeads};
  }

  AttendCta cta_;
  const PublishedArguments& a_;
  ListedRow* rows_;     // [kListed]
  float* corrections_;  // [kListed, kWidth]
};

/// By all threads of a CTA.
template <typename T, typename Shape>
__device__ inline void attend_rows(const PublishedArguments& a, char* shared) {
  const AttendCta cta(a);
  PartialWeight* weights = a.partial_weights + cta.slot() * a.group;
  if (cta.begin == cta.end) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < a.group) weights[thread] = {-INFINITY, 0};
    return;
  }
  using Attender = MemberAttender<T, Shape, AttendCta, UnionRows<Shape>>;
  typename Attender::Queries queries;
  queries.load(static_cast<const T*>(a.step.q) + cta.head_row(0) * a.step.head_dim, a.group,
               a.step.head_dim, cta.lane);
  Attender attender(cta, queries, shared);
  attender.run();
  device::sync_workers<Shape::kThreads>();  // sums take the ring's place
  const device::Partials none;
  const typename Shape::Merge merge(none, a.step, a.group, shared, Shape::Merge::kWarpFloats,
                                    shared + Shape::kWeights);
  float2* values = a.partial_values + cta.slot() * (a.group * Shape::kDim / 2);
  merge.add_warps(attender.sums,
                  [&](int i, int head, int column, const device::WeightedPair& total) {
                    values[i] = {total.a, total.b};
                    if (column == 0) weights[head] = {total.highest, total.sum};
                  });
}

/// The fifth launch: a CTA for each head; threads that share two columns take splits in turn.
template <int D>
class SplitSum {
 public:
  static constexpr int kThreads = 256;

  __device__ SplitSum(const PublishedArguments& a, char* shared)
      : a_(a),
        head_(static_cast<int>(blockIdx.x)),
        thread_(static_cast<int>(threadIdx.x)),
        team_{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), 0, 0},
        first_slot_((std::int64_t{team_.sequence} * a.step.kv_heads + team_.kv_head) * a.splits),
        factors_(reinterpret_cast<float*>(shared)),
        warps_(factors_ + kMostSplits),
        sums_(reinterpret_cast<float2*>(warps_ + 2 * kWarps)) {}

  static constexpr int kWarps = kThreads / device::kWarp;
  static constexpr int kSharedBytes = 4 * (kMostSplits + 2 * kWarps) + 8 * kThreads;

  __device__ void run() const {
    constexpr int kPairs = D / 2;
    const device::WeightedPair state = weigh();
    const int pair = thread_ % kPairs;
    const float2* values = a_.partial_values + (first_slot_ * a_.group + head_) * kPairs + pair;
    float2 sum{0, 0};
#pragma unroll 8
    for (int s = thread_ / kPairs; s < a_.splits; s += kThreads / kPairs) {
      const float factor = factors_[s];
      if (factor == 0) continue;  // nothing was written, perhaps
      const float2 value = values[std::int64_t{s} * a_.group * kPairs];
      sum.x += factor * value.x;
      sum.y += factor * value.y;
    }
    sums_[thread_] = sum;
    __syncthreads();
    if (thread_ >= kPairs) return;
#pragma unroll
    for (int i = 1; i < kThreads / kPairs; ++i) {
      sum.x += sums_[thread_ + i * kPairs].x;
      sum.y += sums_[thread_ + i * kPairs].y;
    }
    device::write_weighted(a_.step, a_.group, team_, head_, 2 * pair,
                           {sum.x, sum.y, state.sum, state.highest});
  }

 private:
  /// The splits' common reference, the sum of weights, and what each split's are multiplied by.
  __device__ device::WeightedPair weigh() const {
    static_assert(kMostSplits <= kThreads);
    const int lane = thread_ % device::kWarp;
    PartialWeight own{-INFINITY, 0};
    if (thread_ < a_.splits) {
      own = a_.partial_weights[(first_slot_ + thread_) * a_.group + head_];
    }
    const std::uint32_t most = __reduce_max_sync(0xffffffffu, device::key_of(own.highest));
    if (lane == 0) warps_[thread_ / device::kWarp] = device::value_of(most);
    __syncthreads();
    device::WeightedPair state;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) state.highest = fmaxf(state.highest, warps_[w]);
    const float factor = device::rescale(own.highest, state.highest);
    factors_[thread_] = factor;
    float sum = factor * own.sum;
#pragma unroll
    for (int distance = 1; distance < device::kWarp; distance *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    if (lane == 0) warps_[kWarps + thread_ / device::kWarp] = sum;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) state.sum += warps_[kWarps + w];
    return state;
  }

  const PublishedArguments& a_;
  int head_;
  int thread_;
  TeamSplit::Team team_;
  std::int64_t first_slot_;
  float* factors_;  // [kMostSplits]
  float* warps_;    // [2, kWarps]
  float2* sums_;    // [kThreads]
};

}  // namespace kvsim::santapp
