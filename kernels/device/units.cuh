#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/geometry.h"
#include "kernels/device/ptx.cuh"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"

// Units of 16 tokens: how a warp walks over them, copies their rows and scores them. A warp has few
// companions to hide its latency behind, so the loop over units counts instructions: addresses are
// advanced, not recomputed, and whole units take a path without tests.

namespace kvsim::device {

inline constexpr int kWarp = 32;

/// Shared memory of the kernels begins on such a boundary, so that tile offsets can be flipped by
/// exclusive or.
inline constexpr int kSharedAlignment = 1024;

template <typename T>
__device__ inline const T* row_pointer(const KvTensor& tensor, int sequence, int kv_head,
                                       int token) {
  std::int64_t block = sequence;
  int row = token;
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
  std::int32_t position = 0;
  std::int32_t step = 1;
  std::int32_t end = 0;

  __device__ bool done() const { return position >= end; }
  /// True if the next position lies in another team.
  __device__ bool advance(const TeamSplit& split) {
    position += step;
    return settle(split);
  }
  __device__ bool settle(const TeamSplit& split) {
    if (position < team.end || position >= end) return false;
    while (position >= team.end) team = split.next(team);
    return true;
  }
};

/// The units that worker `worker` of `workers` in this CTA takes; the first may lie in a later team
/// than the stream's.
__device__ inline UnitStream units_of_worker(const TeamSplit& split, int cta, int worker,
                                             int workers) {
  UnitStream stream;
  if (split.ctas_per_team > 0) {
    const int index = cta / split.ctas_per_team;
    stream.team = split.team(index / split.kv_heads, index % split.kv_heads);
    stream.position = stream.team.begin + cta % split.ctas_per_team + split.ctas_per_team * worker;
    stream.step = split.ctas_per_team * workers;
    stream.end = stream.team.end;
    return stream;
  }
  const std::int32_t begin = split.share_begin(cta);
  stream.team = split.team_at(begin);
  stream.position = begin + worker;
  stream.step = workers;
  stream.end = split.share_begin(cta + 1);
  return stream;
}

/// A unit in shared memory: 16 rows of D elements, whose 16-byte chunks are permuted (chunk ^ row)
/// so that matrix loads meet no bank twice.
template <int D>
struct UnitTile {
  static constexpr int kChunks = D / 8;
  static constexpr int kRowBytes = D * 2;
  static constexpr int kBytes = kUnitTokens * kRowBytes;
  static constexpr int kRowsAtOnce = kWarp / kChunks;  // of a warp's copies
  static_assert(kRowsAtOnce >= 1 && kBytes % kSharedAlignment == 0);

  __device__ static std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  /// From a row's chunk c, c even, to chunk c ^ flip: exclusive or with this.
  __device__ static constexpr std::uint32_t flip(int chunks) {
    return static_cast<std::uint32_t>(chunks) << 4;
  }
};

/// Copies units of one tensor into shared memory, 16 bytes per lane at a time.
template <typename T, int D>
class UnitReader {
 public:
  using Tile = UnitTile<D>;

  __device__ UnitReader(const KvTensor& tensor, int head_dim, int lane, std::uint64_t policy)
      : tensor_(tensor),
        policy_(policy),
        offset_(lane / Tile::kChunks * tensor.token_stride + lane % Tile::kChunks * 8),
        row_step_(Tile::kRowsAtOnce * tensor.token_stride),
        tile_offset_(Tile::offset(lane / Tile::kChunks, lane % Tile::kChunks)),
        row_(lane / Tile::kChunks),
        inside_(lane % Tile::kChunks * 8 < head_dim),
        whole_(head_dim == D) {}

  __device__ void seek(int sequence, int kv_head, int token) {
    next_ = row_pointer<T>(tensor_, sequence, kv_head, token) + offset_;
  }
  /// From a unit of the same cache to the one that is `tokens` further and begins at `token`.
  __device__ void advance(int tokens, int sequence, int kv_head, int token) {
    if (tensor_.pages != nullptr) return seek(sequence, kv_head, token);
    next_ += tokens * tensor_.token_stride;
  }

  /// Rows from `tokens` on become zero: 0 * NaN must not get in.
  __device__ void copy(std::uint32_t tile, int tokens) const {
    if (!whole_ || tokens < kUnitTokens) return copy_part(tile, tokens);
    const std::uint32_t target = tile + tile_offset_;
    const T* source = next_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async16(place(target, i), source, policy_);
      source += row_step_;
    }
  }

 private:
  static constexpr int kCopies = kUnitTokens / Tile::kRowsAtOnce;

  __device__ void copy_part(std::uint32_t tile, int tokens) const {
    const std::uint32_t target = tile + tile_offset_;
    const T* source = next_;
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const bool valid = inside_ && row_ + i * Tile::kRowsAtOnce < tokens;
      copy_async16_or_zero(place(target, i), valid ? source : static_cast<const T*>(tensor_.data),
                           valid);
      source += row_step_;
    }
  }

  __device__ static std::uint32_t place(std::uint32_t target, int i) {
    const int rows = i * Tile::kRowsAtOnce;
    return (target ^ Tile::flip(rows & 7)) + static_cast<std::uint32_t>(rows * Tile::kRowBytes);
  }

  const KvTensor& tensor_;
  std::uint64_t policy_;
  const T* next_ = nullptr;
  std::int64_t offset_;
  std::int64_t row_step_;
  std::uint32_t tile_offset_;
  int row_;
  bool inside_;
  bool whole_;
};

/// A load that the compiler does not move.
__device__ inline std::uint32_t load_now(const void* source) {
  std::uint32_t word;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(word) : "l"(source));
  return word;
}

/// Part of a row, in one load.
template <int kWords>
__device__ inline void load_words(std::uint32_t (&words)[kWords], const void* source) {
  if constexpr (kWords == 1) {
    words[0] = __ldg(static_cast<const std::uint32_t*>(source));
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(words) = __ldg(static_cast<const uint2*>(source));
  } else {
    *reinterpret_cast<uint4*>(words) = __ldg(static_cast<const uint4*>(source));
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
      const T* row = q + head * head_dim + (lane % 4) * 2;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = k * 16 + half * 8;
          const bool inside = head < group && column + (lane % 4) * 2 < head_dim;
          r[n][k][half] = inside ? load_now(row + column) : 0u;
        }
      }
    }
  }
};

/// Products of a unit's 16 K rows with the group's queries. s[n][0..3] belong to tokens lane / 4
/// (0, 1) and lane / 4 + 8 (2, 3) and heads 8 n + 2 (lane % 4) + {0, 1}. Even and odd steps have
/// sums of their own, for half the latency.
template <typename T, int D, int kHeads8>
__device__ inline void score_unit(float (&s)[kHeads8][4], std::uint32_t tile,
                                  const QueryFragments<T, D, kHeads8>& queries, int lane) {
  float odd[kHeads8][4];
#pragma unroll
  for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = odd[n][i] = 0;
  }
  const std::uint32_t first = tile + UnitTile<D>::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const Fragment4 rows = load_matrix(first ^ UnitTile<D>::flip(2 * k));
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      multiply_accumulate<T>(k % 2 == 0 ? s[n] : odd[n], rows, queries.r[n][k][0],
                             queries.r[n][k][1]);
    }
  }
#pragma unroll
  for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
  }
}

/// cap * tanh(logit / cap), or the logit if there is no cap. Need not match the CPU's tanh: what a
/// kernel selects, it selects from its own scores.
__device__ __noinline__ inline float capped(float logit, float cap) {
  return cap > 0 ? cap * tanhf(logit / cap) : logit;
}

/// 24 random bits of a query head of one sequence. Not inlined: code that runs once is fetched
/// once, and instruction fetches are what a short kernel waits for.
__device__ __noinline__ inline std::uint32_t random24(const RandomStream& stream, int sequence,
                                                      int query_head, Purpose purpose,
                                                      std::uint32_t index) {
  RandomStream random = stream;
  random.sequence += static_cast<std::uint32_t>(sequence);
  random.head += static_cast<std::uint32_t>(query_head);
  random.purpose = purpose;
  return random.threshold24(index);
}

/// Writes element `index` of the output in the type the step asks for.
__device__ __noinline__ inline void store_output(const DeviceStep& step, std::int64_t index,
                                                 float value) {
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
