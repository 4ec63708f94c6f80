#pragma once

#include <cstdint>

#include "kernels/device/exchange.cuh"
#include "kernels/device/units.cuh"

// Softmax-weighted sums of all V rows: a warp's, and how those of a CTA's warps and of a team's
// CTAs become one.

namespace kvsim::device {

/// What a warp has accumulated for the heads of a group: o[m][n][i] belongs to column 16 m + lane/4
/// + 8 (i / 2) and head 8 n + 2 (lane % 4) + i % 2; the references are in log2.
template <int D, int kHeads8>
struct Accumulator {
  float o[D / 16][kHeads8][4];
  float highest[kHeads8][2];
  float sum[kHeads8][2];  // of this lane's tokens

  /// `reference`: below all scores, and finite where a unit may have none.
  __device__ void clear(float reference = -INFINITY) {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] = 0;
      }
      highest[n][0] = highest[n][1] = reference;
      sum[n][0] = sum[n][1] = 0;
    }
  }

  /// Moves the reference of head pair n so that no exponent is above zero.
  __device__ void raise(int n, const float (&s)[4]) {
    float now[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
    if (!__any_sync(0xffffffffu, now[0] > highest[n][0] || now[1] > highest[n][1])) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
        now[h] = fmaxf(now[h], __shfl_xor_sync(0xffffffffu, now[h], distance));
      }
      const float before = highest[n][h];
      highest[n][h] = fmaxf(before, now[h]);
      const float factor = rescale(before, highest[n][h]);
      sum[n][h] *= factor;
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
        o[m][n][h] *= factor;
        o[m][n][h + 2] *= factor;
      }
    }
  }

  /// Adds a unit: weights 2^(s - highest), rounded to the type of V for the product. A warp's first
  /// unit has a valid token, so the reference is finite by now.
  template <typename T>
  __device__ void add(float (&s)[kHeads8][4], std::uint32_t v_tile, int lane) {
    std::uint32_t weights[kHeads8][2];
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      raise(n, s[n]);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = fast_exp2(s[n][i] - highest[n][i % 2]);
      sum[n][0] += s[n][0] + s[n][2];
      sum[n][1] += s[n][1] + s[n][3];
      weights[n][0] = transpose8x8(pack2<T>(s[n][0], s[n][1]));
      weights[n][1] = transpose8x8(pack2<T>(s[n][2], s[n][3]));
    }
    const std::uint32_t first =
        v_tile + UnitTile<D>::offset((lane & 7) + lane / 16 * 8, (lane / 8) & 1);
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      const Fragment4 columns = load_matrix_transposed(first ^ UnitTile<D>::flip(2 * m));
#pragma unroll
      for (int n = 0; n < kHeads8; ++n) {
        multiply_accumulate<T>(o[m][n], columns, weights[n][0], weights[n][1]);
      }
    }
  }
};

/// Adds up what the warps of a CTA have, then the CTAs of a team.
template <int D, int kHeads8, int kWarps>
class DenseMerge {
 public:
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kHeads = kHeads8 * 8;
  static constexpr int kRow = D + 4;  // floats of a scratch row, padded against bank conflicts
  static constexpr int kWarpFloats = kHeads * kRow;
  static constexpr int kWeightBytes = 8 * kWarps * kHeads;

  /// `scratch`: each warp has kWarpFloats, `stride` apart; `weights`: kWeightBytes.
  __device__ DenseMerge(const Partials& partials, const DeviceStep& step, int group, char* scratch,
                        int stride, char* weights)
      : partials_(partials),
        step_(step),
        group_(group),
        stride_(stride),
        scratch_(reinterpret_cast<float*>(scratch)),
        weights_(reinterpret_cast<float2*>(weights)) {}

  /// The warps' results become the CTA's: output if the team is its own, else a partial result.
  __device__ void merge_warps(const Accumulator<D, kHeads8>& sums, const TeamSplit::Team& team,
                              const Sharing& sharing, std::uint32_t launch) const {
    add_warps(sums, [&](int i, int head, int column, const WeightedPair& total) {
      if (sharing.members == 1) {
        write_weighted(step_, group_, team, head, column, total);
        return;
      }
      publish(partials_.values + sharing.slot * (group_ * D / 2) + i, __float_as_uint(total.a),
              __float_as_uint(total.b), launch);
      if (column == 0) {
        publish(partials_.weights + sharing.slot * group_ + head, __float_as_uint(total.sum),
                __float_as_uint(total.highest), launch);
      }
    });
  }

  /// Calls write(i, head, column, total) for pair i of the group's columns, each once.
  template <typename Write>
  __device__ void add_warps(const Accumulator<D, kHeads8>& sums, const Write& write) const {
    write_warp(sums);
    sync_workers<kThreads>();
    for (int i = static_cast<int>(threadIdx.x); i < group_ * (D / 2); i += kThreads) {
      const int head = i / (D / 2);
      const int column = 2 * (i % (D / 2));
      write(i, head, column, total_of(head, column));
    }
  }

  /// Teams that are shared with other CTAs: a share may cut its first and its last. `scratch`:
  /// [kThreads].
  template <bool kTeams>
  __device__ void merge_cut_teams(const TeamSplit& split, const TeamSplit::Team& first,
                                  const TeamSplit::Team& last, WeightedPair* scratch,
                                  std::uint32_t launch) const {
    const TeamSum<D, kThreads, true> sum(partials_, group_, scratch, launch);
    TeamSplit::Team team = first;
#pragma unroll 1
    for (int i = 0; i < (kTeams ? 1 : 2); ++i) {
      if (i == 1) {
        if (first.begin == last.begin) break;
        team = last;
      }
      const Sharing sharing = sharing_of<kTeams>(split, partials_, team);
      if (sharing.members == 1) continue;
      sum.run(sharing, [&](int head, int column, const WeightedPair& total) {
        write_weighted(step_, group_, team, head, column, total);
      });
    }
  }

 private:
  __device__ WeightedPair total_of(int head, int column) const {
    float highest = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, weights_[w * kHeads + head].x);
    WeightedPair total{0, 0, 0, highest};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 weight = weights_[w * kHeads + head];
      const float2 value =
          *reinterpret_cast<const float2*>(scratch_ + w * stride_ + head * kRow + column);
      const float factor = rescale(weight.x, highest);
      total.sum += factor * weight.y;
      total.a += factor * value.x;
      total.b += factor * value.y;
    }
    return total;
  }

  __device__ void write_warp(const Accumulator<D, kHeads8>& sums) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = 8 * n + 2 * (lane % 4) + h;
        float sum = sums.sum[n][h];
#pragma unroll
        for (int distance = 4; distance < kWarp; distance *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        if (lane < 4) weights_[warp * kHeads + head] = {sums.highest[n][h], sum};
        if (head >= group_) continue;
        float* row = scratch_ + warp * stride_ + head * kRow + lane / 4;
#pragma unroll
        for (int m = 0; m < D / 16; ++m) {
          row[16 * m] = sums.o[m][n][h];
          row[16 * m + 8] = sums.o[m][n][h + 2];
        }
      }
    }
  }

  const Partials& partials_;
  const DeviceStep& step_;
  int group_;
  int stride_;       // floats from one warp's rows to the next one's
  float* scratch_;   // [warps][heads, kRow]
  float2* weights_;  // [warps, heads]: reference and sum
};

}  // namespace kvsim::device
