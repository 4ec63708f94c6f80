#pragma once

#include <cstdint>

#include "kernels/bernoulli/feature_table.cuh"
#include "kernels/bernoulli/sizes.h"
#include "kernels/device/units.cuh"

// Feature-major keys: how a warp copies the features that its group reads, 64 tokens at a time,
// and scores them. They come in as up to four pieces that fill a slot of the ring each, as much as
// 16 rows.

namespace kvsim::device {

/// Chunks of 16 features, dealt out to pieces.
struct FeaturePieces {
  int chunks = 0;  // of all pieces
  int pieces = 0;  // none where all queries are zero
};

/// A piece in the ring: rows of 64 tokens, whose 16-byte chunks are permuted (chunk ^ row) so that
/// matrix loads meet no bank twice.
template <typename T, int D, int kHeads8>
class FeatureReader {
 public:
  using Table = FeatureTable<D, kHeads8>;
  static constexpr int kRowBytes = 2 * kFeatureTokens;
  static constexpr int kSlotBytes = UnitTile<D>::kBytes;
  static constexpr int kPieceChunks = kSlotBytes / (Table::kChunkFeatures * kRowBytes);
  /// s[m][n] as score_unit() has it, of tokens 16 m to 16 m + 15.
  static constexpr int kParts = kFeatureTokens / kUnitTokens;
  using Scores = float[kParts][kHeads8][4];

  __device__ FeatureReader(const DeviceStep& step, const Table& table, int lane)
      : keys_(step.k_by_feature),
        head_dim_(step.head_dim),
        table_(table),
        lane_(lane),
        policy_(evict_first_policy()) {}

  __device__ FeaturePieces pieces() const {
    return {table_.chunks(), (table_.chunks() + kPieceChunks - 1) / kPieceChunks};
  }

  /// Starts the copy of a piece of the tokens from `token` on, a multiple of 64, of which `tokens`
  /// exist; the others become zero, or what lies between the last token and the next 16 bytes.
  __device__ void copy(std::uint32_t slot, const FeaturePieces& pieces, int piece,
                       const TeamSplit::Team& team, int token, int tokens) const {
    const int first = piece * kPieceChunks * Table::kChunkFeatures;
    const int features = chunks_of(pieces, piece) * Table::kChunkFeatures;
    const T* source = static_cast<const T*>(keys_.data) + team.sequence * keys_.sequence_stride +
                      team.kv_head * keys_.head_stride + std::int64_t{token} * head_dim_ +
                      lane_ % kLanes * kChunkTokens;
    const bool inside = lane_ % kLanes * kChunkTokens < tokens;
#pragma unroll 2
    for (int i = lane_ / kLanes; i < features; i += kWarp / kLanes) {
      const int feature = table_.features[first + i];
      const std::uint32_t target = slot + offset(i, lane_ % kLanes);
      const T* row = source + feature * kFeatureBlock;
      if (tokens >= kFeatureTokens) {
        copy_async16(target, row, policy_);
      } else {
        copy_async16_or_zero(target, inside ? row : static_cast<const T*>(keys_.data), inside);
      }
    }
  }

  /// Adds the products of a piece that is there. `exact`: the weights are whole numbers.
  __device__ void score(Scores& s, std::uint32_t slot, const FeaturePieces& pieces, int piece,
                        bool exact) const {
    const int first = piece * kPieceChunks;
    const int row = lane_ % 8 + lane_ / 16 * 8;
    const std::uint32_t rows = slot + offset(row, lane_ / 8 % 2);
#pragma unroll 1
    for (int c = 0; c < chunks_of(pieces, piece); ++c) {
      const std::uint32_t at = rows + c * Table::kChunkFeatures * kRowBytes;
      Fragment4 keys[kParts];
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
        keys[m] = load_matrix_transposed(at ^ static_cast<std::uint32_t>(2 * m << 4));
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        if (part == 1 && exact) break;
#pragma unroll
        for (int n = 0; n < kHeads8; ++n) {
          const uint2 weights = table_.weights[part][first + c][n][lane_];
#pragma unroll
          for (int m = 0; m < kParts; ++m) {
            multiply_accumulate<T>(s[m][n], keys[m], weights.x, weights.y);
          }
        }
      }
    }
  }

 private:
  static constexpr int kChunkTokens = 8;                        // 16 bytes
  static constexpr int kLanes = kFeatureTokens / kChunkTokens;  // that take a feature

  __device__ static std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }

  __device__ static int chunks_of(const FeaturePieces& pieces, int piece) {
    return min(kPieceChunks, pieces.chunks - piece * kPieceChunks);
  }

  const FeatureMajorKeys& keys_;
  int head_dim_;
  const Table& table_;
  int lane_;
  std::uint64_t policy_;
};

}  // namespace kvsim::device
