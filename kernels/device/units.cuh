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

/// Sum of `count` over earlier lanes. Only the first `among` lanes get it.
template <typename Count>
__device__ inline Count lanes_before(Count count, int lane, int among = kWarp) {
  Count through = count;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    if (distance >= among) break;
    const Count other = __shfl_up_sync(0xffffffffu, through, distance);
    if (lane >= distance) through += other;
  }
  return through - count;
}

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
         kv_head * tensor.head_stride + std::int64_t{row} * tensor.token_stride;
}

/// This CTA's number in its grid.
__device__ inline int this_cta() {
  return static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
}

/// Flat positions begin, begin + step, … < end of a split, with the team each lies in. Kernels come
/// in two kinds: kTeams, where each team has CTAs of its own (grid_of), needs none of the code that
/// goes from one team to the next.
template <bool kTeams>
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
    if constexpr (kTeams) {
      return false;
    } else {
      if (position < team.end || position >= end) return false;
      while (position >= team.end) team = split.next(team);
      return true;
    }
  }
};

/// The team of this CTA, where teams have CTAs of their own: all have as many units.
__device__ inline TeamSplit::Team own_team(const TeamSplit& split) {
  const int begin = static_cast<int>(blockIdx.y + gridDim.y * blockIdx.z) * split.team_units;
  return {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), begin,
          begin + split.team_units};
}

/// The rows that a sequence sees.
template <bool kTeams>
__device__ inline int context_of(const DeviceStep& step, int sequence) {
  return step.contexts[kTeams ? 0 : static_cast<std::size_t>(sequence)];
}

/// The units that warp `warp` of `warps` in this CTA takes, in turn with the others of the CTA,
/// whose share is contiguous; the first may lie in a later team than the stream's.
template <bool kTeams>
__device__ inline UnitStream<kTeams> units_of_warp(const TeamSplit& split, int warp, int warps) {
  UnitStream<kTeams> stream;
  if constexpr (kTeams) {
    const int cta = static_cast<int>(blockIdx.x);
    stream.team = own_team(split);
    stream.position = stream.team.begin + cta * split.cta_units + min(cta, split.rest_units);
    stream.end = stream.position + split.cta_units + (cta < split.rest_units ? 1 : 0);
  } else {
    stream.position = split.share_begin(this_cta());
    stream.end = split.share_begin(this_cta() + 1);
    stream.team = split.team_at(stream.position);
  }
  stream.position += warp;
  stream.step = warps;
  return stream;
}

/// The units that this CTA takes: where teams have CTAs of their own they take them in turn, so
/// that none has all of a sequence's beginning or end.
template <bool kTeams>
__device__ inline UnitStream<kTeams> units_of_cta(const TeamSplit& split) {
  if constexpr (kTeams) {
    UnitStream<kTeams> stream;
    stream.team = own_team(split);
    stream.position = stream.team.begin + static_cast<int>(blockIdx.x);
    stream.step = static_cast<int>(gridDim.x);
    stream.end = stream.team.end;
    return stream;
  } else {
    return units_of_warp<kTeams>(split, 0, 1);
  }
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
  /// From one of a lane's places to the one `rows` further, a multiple of kRowsAtOnce.
  __device__ static std::uint32_t further(std::uint32_t place, int rows) {
    return (place ^ flip(rows & 7)) + static_cast<std::uint32_t>(rows * kRowBytes);
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
        offset_(std::int64_t{lane / Tile::kChunks} * tensor.token_stride +
                lane % Tile::kChunks * 8),
        row_step_(static_cast<std::uint32_t>(Tile::kRowsAtOnce * tensor.token_stride) * 2),
        tile_offset_(Tile::offset(lane / Tile::kChunks, lane % Tile::kChunks)),
        row_(lane / Tile::kChunks),
        inside_(lane % Tile::kChunks * 8 < head_dim),
        whole_(head_dim == D) {}

  __device__ void seek(int sequence, int kv_head, int token) {
    next_ = row_pointer<T>(tensor_, sequence, kv_head, token) + offset_;
  }
  /// Points to a row that the caller has found.
  __device__ void point_to(const T* row) { next_ = row + offset_; }
  /// From a unit of the same cache to the one that is `tokens` further and begins at `token`.
  __device__ void advance(int tokens, int sequence, int kv_head, int token) {
    if (tensor_.pages != nullptr) return seek(sequence, kv_head, token);
    next_ += std::int64_t{tokens} * tensor_.token_stride;
  }

  /// Rows from `tokens` on become zero: 0 * NaN must not get in.
  __device__ void copy(std::uint32_t tile, int tokens) const {
    if (!whole_ || tokens < kUnitTokens) return copy_part(tile, tokens);
    const std::uint32_t target = tile + tile_offset_;
    const auto* source = reinterpret_cast<const char*>(next_);
#pragma unroll
    for (std::uint32_t i = 0; i < kCopies; ++i) {  // one wide multiplication and addition each
      copy_async16(Tile::further(target, static_cast<int>(i) * Tile::kRowsAtOnce),
                   source + std::uint64_t{i} * row_step_, policy_);
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
      copy_async16_or_zero(Tile::further(target, i * Tile::kRowsAtOnce),
                           valid ? source : static_cast<const T*>(tensor_.data), valid);
      source += row_step_ / 2;
    }
  }

  const KvTensor& tensor_;
  std::uint64_t policy_;
  const T* next_ = nullptr;
  std::int64_t offset_;
  std::uint32_t row_step_;  // bytes
  std::uint32_t tile_offset_;
  int row_;
  bool inside_;
  bool whole_;
};

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

  /// Heads past the group's last repeat it; nobody looks at their scores.
  __device__ void load(const T* q, int group, int head_dim, int lane) {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      const T* row = q + min(n * 8 + lane / 4, group - 1) * head_dim + (lane % 4) * 2;
      compute_now(row);  // once, not for each load
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = k * 16 + half * 8;
          r[n][k][half] = column < head_dim ? load_now(row + column) : 0u;
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

/// Writes elements `index`, even, and index + 1 of the output in the type the step asks for.
__device__ inline void store_output(const DeviceStep& step, std::int64_t index, float a, float b) {
  if (step.output_type == ElementType::kFloat32) {
    static_cast<float2*>(step.output)[index / 2] = {a, b};
  } else {
    const bool bfloat = step.output_type == ElementType::kBfloat16;
    static_cast<std::uint32_t*>(step.output)[index / 2] =
        bfloat ? pack2<__nv_bfloat16>(a, b) : pack2<__half>(a, b);
  }
}

}  // namespace kvsim::device
