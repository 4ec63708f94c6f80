#pragma once

#include <cstdint>

#include "kernels/bernoulli/rule.h"
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

  std::uint64_t drawn;         // barrier: all below is there, one phase per team
  std::int32_t count;          // features that some head reads
  float scales[8 * kHeads8];   // of a head's sums: norm / B times the step's scale
  std::uint32_t used[D / 32];  // bit f % 32 of word f / 32: feature f is read
  std::int16_t features[D];    // ascending; then -1 until a chunk is full
  uint2 weights[2][kChunks][kHeads8][kWarp];

  __device__ int chunks() const { return (count + kChunkFeatures - 1) / kChunkFeatures; }
};

/// Draws the queries of one team after the other, by kDrawers threads of the CTA.
template <typename T, int D, int kHeads8, int kDrawers>
class FeatureDrawing {
 public:
  using Table = FeatureTable<D, kHeads8>;

  /// `thread`: among the drawing ones; `scratch`: [group, D], free while they draw.
  __device__ FeatureDrawing(const DeviceStep& step, const QueryDraws& query, int group, int thread,
                            Table& table, float* scratch)
      : step_(step),
        query_(query),
        group_(group),
        thread_(thread),
        table_(table),
        weights_(scratch) {}

  /// When all of them return, the table is complete; until then nobody may read the one before.
  __device__ void draw(const TeamSplit::Team& team) const {
    if (thread_ < D / kWarp) table_.used[thread_] = 0;
    sync();
#pragma unroll 1
    for (int head = thread_ / kWarp; head < group_; head += kDrawers / kWarp) {
      draw_head(team, head);
    }
    sync();
    list_features();
    sync();
    write_operands();
  }

 private:
  static constexpr int kOfLane = D / kWarp;  // features: lane, lane + 32, …

  __device__ static void sync() { asm volatile("barrier.sync 3, %0;" ::"n"(kDrawers) : "memory"); }

  __device__ static float wide(T value) { return static_cast<float>(value); }

  /// Not inlined: code that runs a few times is fetched once.
  __device__ static __noinline__ std::uint32_t count_of(float m, float norm,
                                                        const QueryDraws& query,
                                                        const RandomStream& random, int feature) {
    return feature_count(m, norm, query, random, static_cast<std::uint32_t>(feature));
  }

  __device__ void draw_head(const TeamSplit::Team& team, int head) const {
    const int lane = thread_ % kWarp;
    const T* queries =
        static_cast<const T*>(step_.q) + first_head(step_, group_, team) * step_.head_dim;
    float q[kOfLane];
    float m[kOfLane];  // magnitudes: the head's, or summed over the group
    float norm = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int feature = i * kWarp + lane;
      const bool inside = feature < step_.head_dim;
      q[i] = inside ? wide(queries[head * step_.head_dim + feature]) : 0;
      m[i] = fabsf(q[i]);
      if (query_.group_mean) m[i] = inside ? sum_of_group(queries + feature) : 0;
      norm = fmaxf(norm, m[i]);
    }
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      norm = fmaxf(norm, __shfl_xor_sync(0xffffffffu, norm, distance));
    }
    RandomStream random = step_.random;
    random.sequence += static_cast<std::uint32_t>(team.sequence);
    random.head +=
        static_cast<std::uint32_t>(team.kv_head * group_ + (query_.group_mean ? 0 : head));
    random.purpose = Purpose::kQueryDraw;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int feature = i * kWarp + lane;
      const std::uint32_t count = count_of(m[i], norm, query_, random, feature);
      const std::uint32_t read = __ballot_sync(0xffffffffu, count > 0);
      if (lane == 0 && read != 0) atomicOr(table_.used + i, read);
      weights_[head * D + feature] =
          query_.group_mean ? mean_query_weight(count, q[i], m[i]) : ternary_weight(count, q[i]);
      if (step_.feature_counts != nullptr && feature < step_.head_dim) {
        const std::int64_t row = first_head(step_, group_, team) + head;
        step_.feature_counts[row * step_.head_dim + feature] = count;
      }
    }
    if (lane == 0) table_.scales[head] = step_.scale * (norm / static_cast<float>(query_.draws));
  }

  /// Σ |q_i| over the group, in the order of its heads: every head's warp gets the same.
  __device__ float sum_of_group(const T* feature) const {
    float sum = 0;
    for (int head = 0; head < group_; ++head) sum += fabsf(wide(feature[head * step_.head_dim]));
    return sum;
  }

  __device__ void list_features() const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < D / kWarp; ++i) count += __popc(table_.used[i]);
    if (thread_ == 0) table_.count = count;
    for (int feature = thread_; feature < D; feature += kDrawers) {
      const std::uint32_t used = table_.used[feature / kWarp];
      if ((used >> feature % kWarp & 1) == 0) continue;
      int place = __popc(used & ((1u << feature % kWarp) - 1u));
      for (int i = 0; i < feature / kWarp; ++i) place += __popc(table_.used[i]);
      table_.features[place] = static_cast<std::int16_t>(feature);
    }
    const int whole = (count + Table::kChunkFeatures - 1) & -Table::kChunkFeatures;
    if (count + thread_ < whole) table_.features[count + thread_] = -1;
  }

  __device__ void write_operands() const {
    const int words = table_.chunks() * kHeads8 * kWarp * 2;
    auto* high = reinterpret_cast<std::uint32_t*>(table_.weights[0]);
    auto* low = reinterpret_cast<std::uint32_t*>(table_.weights[1]);
#pragma unroll 1
    for (int e = thread_; e < words; e += kDrawers) {
      const int half = e % 2;
      const int lane = e / 2 % kWarp;
      const int n = e / (2 * kWarp) % kHeads8;
      const int chunk = e / (2 * kWarp * kHeads8);
      const int head = 8 * n + lane / 4;
      const int place = chunk * Table::kChunkFeatures + 8 * half + 2 * (lane % 4);
      const float a = weight(head, place);
      const float b = weight(head, place + 1);
      high[e] = pack2<T>(a, b);
      const float2 rounded = unpack2<T>(high[e]);
      low[e] = pack2<T>(a - rounded.x, b - rounded.y);
    }
  }
  __device__ float weight(int head, int place) const {
    const int feature = table_.features[place];
    return head < group_ && feature >= 0 ? weights_[head * D + feature] : 0;
  }

  const DeviceStep& step_;
  QueryDraws query_;
  int group_;
  int thread_;
  Table& table_;
  float* weights_;  // [group, D]
};

}  // namespace kvsim::device
