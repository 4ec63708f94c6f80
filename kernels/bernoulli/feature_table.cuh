#pragma once

#include <cstdint>

#include "kernels/bernoulli/rule.h"
#include "kernels/bernoulli/sizes.h"
#include "kernels/device/exchange.cuh"

// A group's drawn queries (rule.h) in shared memory: the features of K that some head reads, and
// what each head multiplies them by.

namespace kvsim::device {

/// The weights are operands B of 16 x 8 x 16 products: heads on the N side, features on the K side
/// in the order of the list. Whole numbers are exact in 16 bits; of a mean query's weights, which
/// are not, `weights[1]` has what rounding left.
template <int D, int kHeads8>
struct FeatureTable {
  static constexpr int kChunkFeatures = 16;  // of one product
  static constexpr int kChunks = D / kChunkFeatures;

  std::uint64_t drawn;         // barrier: all below is there; one phase per team after the first
  std::uint64_t left;          // barrier: nobody needs it any more, likewise
  std::int32_t count;          // features that some head reads
  float norms[8 * kHeads8];    // largest magnitude of a head, or of the group
  float scales[8 * kHeads8];   // of a head's sums: norm / B times the step's scale
  std::uint32_t used[D / 32];  // bit f % 32 of word f / 32: feature f is read
  std::int16_t features[D];    // ascending; until a chunk is full the last one again, unweighed
  uint2 weights[2][kChunks][kHeads8][kWarp];

  __device__ int chunks() const { return (count + kChunkFeatures - 1) / kChunkFeatures; }
};

/// Draws the queries of one team after the other. This runs before the first key can be fetched, so
/// it is spread over all threads that are there, and it is short: instruction fetches are what it
/// waits for.
template <typename T, int D, int kHeads8>
class FeatureDrawing {
 public:
  using Table = FeatureTable<D, kHeads8>;
  static constexpr int kScratchFloats = (8 * kHeads8 + 1) * D;

  /// `scratch`: [kScratchFloats], free while they draw.
  __device__ FeatureDrawing(const DeviceStep& step, const QueryDraws& query, int group,
                            Table& table, float* scratch)
      : step_(step),
        query_(query),
        group_(group),
        table_(table),
        queries_(scratch),
        magnitudes_(scratch + 8 * kHeads8 * D) {}

  // By `drawers` threads of the CTA, whole warps, of which this is number `thread`.

  /// Reads the team's queries; nobody may need the table before any more. Each thread calls
  /// meanwhile() when it has asked for its first queries and waits for them.
  template <typename Meanwhile>
  __device__ void load(const TeamSplit::Team& team, int thread, int drawers,
                       const Meanwhile& meanwhile) const {
    load_heads(team, thread, drawers, meanwhile);
    sync_some(drawers);
  }
  /// When all have returned, the table is complete.
  __device__ void draw(const TeamSplit::Team& team, int thread, int drawers) const {
    draw_features(team, thread, drawers);
    sync_some(drawers);
    place_features(thread, drawers);
  }

 private:
  /// A warp a head: queries, zero behind the head's size, and the largest magnitude. Of a mean
  /// query all warps write the same magnitudes.
  template <typename Meanwhile>
  __device__ void load_heads(const TeamSplit::Team& team, int thread, int drawers,
                             const Meanwhile& meanwhile) const {
    const int lane = thread % kWarp;
    const T* queries =
        static_cast<const T*>(step_.q) + first_head(step_, group_, team) * step_.head_dim;
    if (thread < D / kWarp) table_.used[thread] = 0;
#pragma unroll 1
    for (int head = thread / kWarp; head < group_; head += drawers / kWarp) {
      float q[D / kWarp];
#pragma unroll
      for (int i = 0; i < D / kWarp; ++i) {
        const int feature = lane + i * kWarp;
        const bool inside = feature < step_.head_dim;
        q[i] = inside ? wide(queries[head * step_.head_dim + feature]) : 0;
      }
      if (head == thread / kWarp) meanwhile();
      float norm = 0;
#pragma unroll
      for (int i = 0; i < D / kWarp; ++i) {
        queries_[head * D + lane + i * kWarp] = q[i];
        norm = fmaxf(norm, fabsf(q[i]));
      }
      if (query_.group_mean) norm = add_magnitudes(queries, lane);
#pragma unroll 1
      for (int distance = 1; distance < kWarp; distance *= 2) {
        norm = fmaxf(norm, __shfl_xor_sync(0xffffffffu, norm, distance));
      }
      if (lane == 0) {
        table_.norms[head] = norm;
        table_.scales[head] = step_.scale * __fdividef(norm, static_cast<float>(query_.draws));
      }
    }
    if (thread / kWarp >= group_) meanwhile();
  }

  /// Σ |q_i| over the group, in the order of its heads. Returns the largest of this lane.
  __device__ float add_magnitudes(const T* queries, int lane) const {
    float norm = 0;
#pragma unroll 1
    for (int feature = lane; feature < D; feature += kWarp) {
      float sum = 0;  // behind the head's size, too
#pragma unroll 1
      for (int head = 0; head < group_ && feature < step_.head_dim; ++head) {
        sum += fabsf(wide(queries[head * step_.head_dim + feature]));
      }
      magnitudes_[feature] = sum;
      norm = fmaxf(norm, sum);
    }
    return norm;
  }

  /// A head and feature, of which a thread has some at once: they wait together.
  struct Item {
    int head;
    int feature;
    float q;
    float m;  // q, or the group's magnitude
    float norm;
    RandomStream random;
    std::uint32_t count;

    __device__ bool exists(int group) const { return head < group; }
  };

  /// Queries become weights.
  __device__ void draw_features(const TeamSplit::Team& team, int thread, int drawers) const {
    constexpr int kAtOnce = kDrawnAtOnce;  // whose instructions interleave
#pragma unroll 1
    for (int first = thread; first < group_ * D; first += kAtOnce * drawers) {
      Item items[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) items[j] = item(team, first + j * drawers);
      if (query_.stratified) {
#pragma unroll
        for (Item& i : items) {
          i.count = stratified_count(i.m, i.norm, query_.draws, i.random,
                                     static_cast<std::uint32_t>(i.feature));
        }
      } else {
#pragma unroll
        for (Item& i : items) {
          i.count =
              iid_count(i.m, i.norm, query_.draws, i.random, static_cast<std::uint32_t>(i.feature));
        }
      }
#pragma unroll
      for (const Item& i : items) {
        if (i.exists(group_)) note(team, i);
      }
    }
  }

  /// Number `index`; behind the last head zeros, which others do not write meanwhile.
  __device__ Item item(const TeamSplit::Team& team, int index) const {
    Item result;
    result.head = index / D;
    result.feature = index % D;
    const bool exists = result.exists(group_);
    const int head = exists ? result.head : 0;
    result.q = exists ? queries_[head * D + result.feature] : 0;
    result.m = query_.group_mean ? magnitudes_[result.feature] : result.q;
    result.norm = table_.norms[head];
    result.random = step_.random;
    result.random.sequence += static_cast<std::uint32_t>(team.sequence);
    result.random.head +=
        static_cast<std::uint32_t>(team.kv_head * group_ + (query_.group_mean ? 0 : head));
    result.random.purpose = Purpose::kQueryDraw;
    return result;
  }

  /// By whole warps, which have 32 neighbouring features.
  __device__ void note(const TeamSplit::Team& team, const Item& i) const {
    const std::uint32_t read = __ballot_sync(0xffffffffu, i.count > 0);
    if (i.feature % kWarp == 0) atomicOr(table_.used + i.feature / kWarp, read);
    queries_[i.head * D + i.feature] =
        query_.group_mean ? mean_query_weight(i.count, i.q, i.m) : ternary_weight(i.count, i.q);
    if (step_.feature_counts != nullptr && i.feature < step_.head_dim) {
      const std::int64_t row = first_head(step_, group_, team) + i.head;
      step_.feature_counts[row * step_.head_dim + i.feature] = i.count;
    }
  }

  /// Features that are read, in ascending order, and all heads' weights of them.
  __device__ void place_features(int thread, int drawers) const {
    int count = 0;
#pragma unroll
    for (int w = 0; w < D / kWarp; ++w) count += __popc(table_.used[w]);
    if (thread == 0) table_.count = count;
#pragma unroll 1
    for (int i = thread; i < group_ * D; i += drawers) {
      const int feature = i % D;
      const std::uint32_t used = table_.used[feature / kWarp];
      if ((used >> feature % kWarp & 1) == 0) continue;
      int place = __popc(used & ((1u << feature % kWarp) - 1u));
#pragma unroll
      for (int w = 0; w < D / kWarp - 1; ++w) {
        if (w < feature / kWarp) place += __popc(table_.used[w]);
      }
      if (i < D) table_.features[place] = static_cast<std::int16_t>(feature);
      write_weight(i / D, place, queries_[i]);
    }
    const int end = (count + Table::kChunkFeatures - 1) & -Table::kChunkFeatures;
#pragma unroll 1
    for (int i = thread; i < group_ * Table::kChunkFeatures; i += drawers) {
      const int place = count + i % Table::kChunkFeatures;
      if (place >= end) continue;
      table_.features[place] = last_feature();
      write_weight(i / Table::kChunkFeatures, place, 0);
    }
  }

  __device__ std::int16_t last_feature() const {
    int last = 0;
#pragma unroll
    for (int w = 0; w < D / kWarp; ++w) {
      if (table_.used[w] != 0) last = w * kWarp + 31 - __clz(static_cast<int>(table_.used[w]));
    }
    return static_cast<std::int16_t>(last);
  }

  /// Heads behind the group's last are left as they are: nobody looks at their sums.
  __device__ void write_weight(int head, int place, float weight) const {
    const int inside = place % Table::kChunkFeatures;
    const int lane = head % 8 * 4 + inside % 8 / 2;
    const int operand = (place / Table::kChunkFeatures * kHeads8 + head / 8) * kWarp + lane;
    const int index = 4 * operand + inside / 8 * 2 + inside % 2;
    const auto high = static_cast<T>(weight);
    reinterpret_cast<T*>(table_.weights[0])[index] = high;
    reinterpret_cast<T*>(table_.weights[1])[index] = static_cast<T>(weight - wide(high));
  }

  __device__ static float wide(T value) { return static_cast<float>(value); }

  const DeviceStep& step_;
  const QueryDraws& query_;
  int group_;
  Table& table_;
  float* queries_;     // [8 kHeads8, D], then weights
  float* magnitudes_;  // [D], of a mean query
};

}  // namespace kvsim::device
