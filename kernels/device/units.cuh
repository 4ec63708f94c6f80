#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/ptx.cuh"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"

// Units of 16 tokens: how a warp walks over them, copies their rows and scores them.

namespace kvsim::device {

inline constexpr int kWarp = 32;
inline constexpr int kUnitTokens = 16;

template <typename T>
__device__ inline const T* row_pointer(const KvTensor& tensor, int sequence, int kv_head,
                                       int token) {
  std::int64_t block = sequence;
  std::int64_t row = token;
  if (tensor.pages != nullptr) {
    block = tensor.pages[sequence * tensor.pages_per_sequence + (token >> tensor.page_shift)];
    row = token & ((1 << tensor.page_shift) - 1);
  }
  return static_cast<const T*>(tensor.data) + block * tensor.sequence_stride +
         kv_head * tensor.head_stride + row * tensor.token_stride;
}

/// Flat positions begin, begin + step, … < end of a split, with the team each lies in.
struct UnitStream {
  TeamSplit::Team team;
  std::int64_t position = 0;
  std::int64_t step = 1;
  std::int64_t end = 0;

  __device__ bool done() const { return position >= end; }
  __device__ void advance(const TeamSplit& split) {
    position += step;
    settle(split);
  }
  __device__ void settle(const TeamSplit& split) {
    while (position < end && position >= team.end) team = split.next(team);
  }
};

/// The units that worker `worker` of `workers` in this CTA takes.
__device__ inline UnitStream units_of_worker(const TeamSplit& split, int cta, int worker,
                                             int workers) {
  UnitStream stream;
  if (split.ctas_per_team > 0) {
    const int index = cta / split.ctas_per_team;
    stream.team = split.team(index / split.kv_heads, index % split.kv_heads);
    stream.position =
        stream.team.begin + cta % split.ctas_per_team + std::int64_t{split.ctas_per_team} * worker;
    stream.step = std::int64_t{split.ctas_per_team} * workers;
    stream.end = stream.team.end;
    return stream;
  }
  const std::int64_t begin = split.share_begin(cta);
  stream.team = split.team_at(begin);
  stream.position = begin + worker;
  stream.step = workers;
  stream.end = split.share_begin(cta + 1);
  return stream;
}

/// A unit in shared memory: 16 rows of D elements, whose 16-byte chunks are permuted so that matrix
/// loads meet no bank twice.
template <int D>
struct UnitTile {
  static constexpr int kChunks = D / 8;
  static constexpr int kBytes = kUnitTokens * D * 2;
  static_assert(kChunks % 8 == 0);

  __device__ static std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * D * 2 + ((chunk ^ (row & 7)) << 4));
  }
};

/// Copies the rows of one unit, `tokens` of them valid, the rest zero: 0 * NaN must not get in.
template <typename T, int D>
__device__ inline void copy_unit(std::uint32_t tile, const T* first, std::int64_t stride,
                                 int tokens, int head_dim, int lane, std::uint64_t policy) {
  using Tile = UnitTile<D>;
  constexpr int kRowsAtOnce = kWarp / Tile::kChunks == 0 ? 1 : kWarp / Tile::kChunks;
  constexpr int kCopies = kUnitTokens / kRowsAtOnce;
  const int chunk = lane % Tile::kChunks;
  const int row = lane / Tile::kChunks;
  const bool inside = chunk * 8 < head_dim;
  const T* source = inside ? first + row * stride + chunk * 8 : first;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int r = row + i * kRowsAtOnce;
    const bool valid = inside && r < tokens;
    copy_async16(tile + Tile::offset(r, chunk), valid ? source + i * kRowsAtOnce * stride : first,
                 valid ? 16 : 0, policy);
  }
}

/// Queries of a group as the B operand of 16 x 8 x 16 products: heads on the N side.
template <typename T, int D, int kHeads8>
struct QueryFragments {
  std::uint32_t r[kHeads8][D / 16][2];

  __device__ void load(const T* q, int group, int head_dim, int lane) {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      const int head = n * 8 + lane / 4;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = k * 16 + half * 8 + (lane % 4) * 2;
          const bool inside = head < group && column < head_dim;
          r[n][k][half] = inside ? *reinterpret_cast<const std::uint32_t*>(q + head * head_dim +
                                                                           column)
                                 : 0u;
        }
      }
    }
  }
};

/// Products of a unit's 16 K rows with the group's queries. s[n][0..3] belong to tokens lane / 4
/// (0, 1) and lane / 4 + 8 (2, 3) and heads 8 n + 2 (lane % 4) + {0, 1}.
template <typename T, int D, int kHeads8>
__device__ inline void score_unit(float (&s)[kHeads8][4], std::uint32_t tile,
                                  const QueryFragments<T, D, kHeads8>& queries, int lane) {
#pragma unroll
  for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
  }
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const Fragment4 rows =
        load_matrix(tile + UnitTile<D>::offset(lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      multiply_accumulate<T>(s[n], rows, queries.r[n][k][0], queries.r[n][k][1]);
    }
  }
}

/// Logit from a raw product.
__device__ inline float logit(float product, float scale, float cap) {
  const float scaled = product * scale;
  return cap > 0 ? cap * tanhf(scaled / cap) : scaled;
}

/// Writes element `index` of the output in the type the step asks for.
__device__ inline void store_output(const DeviceStep& step, std::int64_t index, float value) {
  switch (step.output_type) {
    case ElementType::kBfloat16:
      static_cast<__nv_bfloat16*>(step.output)[index] = __float2bfloat16_rn(value);
      break;
    case ElementType::kFloat16:
      static_cast<__half*>(step.output)[index] = __float2half_rn(value);
      break;
    case ElementType::kFloat32:
      static_cast<float*>(step.output)[index] = value;
      break;
  }
}

}  // namespace kvsim::device
