#pragma once

#include <cstdint>

#include "kernels/device/exchange.cuh"
#include "kernels/santa/sizes.h"

// From a sample's place in a tile to its row, and from a warp's rows to the sum of their V.

namespace kvsim::device {

/// 1 if a < b, for differences of 31 bits. Without predicates sums of many are not one chain.
__device__ inline int count_below(std::uint32_t a, std::uint32_t b) {
  return static_cast<int>((a - b) >> 31);
}
__device__ inline int count_below(uint4 a, std::uint32_t b) {
  return (count_below(a.x, b) + count_below(a.y, b)) + (count_below(a.z, b) + count_below(a.w, b));
}

/// How many of a tile's prefix sums are below `units`; not all are. Two rounds of 16 independent
/// loads take less time than 8 that depend on each other.
__device__ inline int rows_below(const std::uint32_t* prefix, int tile_log2, std::uint32_t units) {
  constexpr int kAtOnce = kPrefixesAtOnce;
  const int stretches = (1 << tile_log2) / kAtOnce;
  const std::uint32_t* last = prefix + kAtOnce - 1;  // of a stretch
  int before = 0;
  if (stretches == kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce - 1; ++i) before += count_below(last[i * kAtOnce], units);
  } else {
#pragma unroll 1
    for (int i = 0; i < stretches - 1; ++i) before += count_below(last[i * kAtOnce], units);
  }
  const auto* words = reinterpret_cast<const uint4*>(prefix + before * kAtOnce);
  int rows = before * kAtOnce;
#pragma unroll
  for (int i = 0; i < kAtOnce / 4; ++i) rows += count_below(words[i], units);
  return min(rows, (1 << tile_log2) - 1);  // scores that are not numbers
}

/// A V row that a warp is to add, and what it weighs.
struct alignas(16) DrawnRow {
  const void* row;
  float weight;
};

/// V rows that the lanes of a warp drew. Each distinct one is queued, then whole batches are loaded
/// at once: D / 8 lanes take a row, 8 columns each, and the lanes beside them other rows.
template <typename T, int D, int kBatch>
class DrawnRows {
 public:
  static constexpr int kColumns = 8;
  static constexpr int kRowsAtOnce = kBatch;

  using Sum = float[kColumns];

  /// Rows that are under way.
  struct Batch {
    std::uint32_t words[kBatch * D / (kColumns * kWarp)][kColumns / 2];
    const DrawnRow* queued = nullptr;  // their weights
    int rows = 0;
  };

  __device__ DrawnRows(const DeviceStep& step, int group, int lane)
      : step_(step), group_(group), lane_(lane) {}

  /// Adds a row of each lane, -1 for none, and the weight of a draw, to the warp's empty queue,
  /// [32]. Equal rows of neighbouring lanes, whose weights are equal, are queued once. Returns how
  /// many are.
  __device__ int fill(DrawnRow* queue, const TeamSplit::Team& team, int head, int row,
                      float weight) const {
    const int left = __shfl_up_sync(0xffffffffu, row, 1);
    const std::uint32_t begins = __ballot_sync(0xffffffffu, lane_ == 0 || row != left);
    const std::uint32_t rows = begins & __ballot_sync(0xffffffffu, row >= 0);
    __syncwarp();  // nobody reads what was queued before
    if ((rows >> lane_ & 1) != 0) {
      const std::uint32_t later = begins & ~((2u << lane_) - 1u);
      const int drawn = (later != 0 ? __ffs(static_cast<int>(later)) - 1 : kWarp) - lane_;
      const T* v = row_pointer<T>(step_.v, team.sequence, team.kv_head, row);
      queue[__popc(rows & ((1u << lane_) - 1u))] = {v, weight * static_cast<float>(drawn)};
      if (step_.counts != nullptr) dump(team, head, row, drawn);
    }
    __syncwarp();
    return __popc(rows);
  }

  /// Starts to load up to kBatch of `rows` queued rows, which stay there until they are added.
  __device__ void load(Batch& batch, const DrawnRow* queue, int rows) const {
    const int column = column_of(lane_);
    const int inside = column < step_.head_dim ? column : 0;
    batch.queued = queue;
    batch.rows = rows;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (j * kRows >= batch.rows) break;
      const int row = j * kRows + lane_ / kLanes;
      if (row >= batch.rows) continue;
      load_words<kColumns / 2>(batch.words[j],
                               static_cast<const T*>(batch.queued[row].row) + inside);
    }
  }

  __device__ void add(Sum& sum, const Batch& batch) const {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (j * kRows >= batch.rows) break;
      const int row = j * kRows + lane_ / kLanes;
      if (row >= batch.rows) continue;
      const float weight = batch.queued[row].weight;
#pragma unroll
      for (int w = 0; w < kColumns / 2; ++w) {
        const float2 value = unpack2<T>(batch.words[j][w]);
        sum[2 * w] = fmaf(weight, value.x, sum[2 * w]);
        sum[2 * w + 1] = fmaf(weight, value.y, sum[2 * w + 1]);
      }
    }
  }

  /// Writes the warp's sum, [D].
  __device__ void write(Sum& sum, float* target) const {
#pragma unroll
    for (int distance = kLanes; distance < kWarp; distance *= 2) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
      }
    }
    if (lane_ >= kLanes) return;
    auto* columns = reinterpret_cast<float4*>(target + column_of(lane_));
    columns[0] = {sum[0], sum[1], sum[2], sum[3]};
    columns[1] = {sum[4], sum[5], sum[6], sum[7]};
  }

 private:
  static constexpr int kLanes = D / kColumns;   // that take a row
  static constexpr int kRows = kWarp / kLanes;  // of a load
  static constexpr int kLoads = kBatch / kRows;

  __device__ static int column_of(int lane) { return lane % kLanes * kColumns; }

  __device__ void dump(const TeamSplit::Team& team, int head, std::int32_t row, int count) const {
    atomicAdd(step_.counts + (first_head(step_, group_, team) + head) * step_.dump_stride + row,
              static_cast<std::uint32_t>(count));
  }

  const DeviceStep& step_;
  int group_;
  int lane_;
};

}  // namespace kvsim::device
