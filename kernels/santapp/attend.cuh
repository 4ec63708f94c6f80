#pragma once

#include <cstdint>

#include "kernels/santapp/row_list.cuh"

// Exact attention to what is listed: a warp takes sixteen rows at a time, scores them for all heads
// of the group by matrix products, and leaves out what a head did not draw.

namespace kvsim::santapp {

/// `Rows`: the list, and what divides its rows' weights, as RowList has them.
template <typename T, typename Shape, typename Cta = TeamCta, typename Rows = RowList<Shape>>
class MemberAttender {
 public:
  static constexpr int kDim = Shape::kDim;
  static constexpr int kHeads8 = Shape::kHeads8;
  using Tile = typename Shape::Tile;

  using Queries = device::QueryFragments<T, kDim, kHeads8>;

  __device__ MemberAttender(const Cta& cta, const Queries& queries, char* shared)
      : cta_(cta),
        a_(cta.a),
        list_(cta, shared),
        ring_(device::shared_address(shared) +
              static_cast<std::uint32_t>(cta.warp * Shape::kStages * Tile::kBytes)),
        keys_(a_.table.template keys<T>(cta.number)),
        values_(a_.table.template values<T>(cta.number)),
        queries_(queries) {}

  /// By all threads, when teams are drawn and the ring is free.
  __device__ void run() {
    sums.clear(kNothingSeen);
    int base = 0;
    int left = list_.fill(base);
    while (true) {
      attend_listed((min(left, Shape::kListed) + device::kUnitTokens - 1) / device::kUnitTokens);
      if (left <= Shape::kListed) break;
      base += Shape::kListed;
      device::sync_workers<Shape::kThreads>();  // the part before may still be read
      left = list_.fill(base);
    }
  }

  device::Accumulator<kDim, kHeads8> sums;

 private:
  /// Below every score, so that a head may attend to none of a unit's rows.
  static constexpr float kNothingSeen = -1e30f;

  __device__ void attend_listed(int units) {
    int ahead = cta_.warp;
#pragma unroll 1
    for (int pair = 0; pair < Shape::kPairs; ++pair, ahead += Shape::kWarps) {
      copy(ahead, units, pair);
    }
    int pair = 0;
#pragma unroll 1
    for (int unit = cta_.warp; unit < units; unit += Shape::kWarps, ahead += Shape::kWarps) {
      device::wait_copies<2 * Shape::kPairs - 1>();
      __syncwarp();
      attend(list_.rows() + unit * device::kUnitTokens, pair);
      copy(ahead, units, pair);
      pair = pair + 1 == Shape::kPairs ? 0 : pair + 1;
    }
    device::wait_copies<0>();
  }

  __device__ std::uint32_t tile_of(int pair) const {
    return ring_ + static_cast<std::uint32_t>(2 * pair * Tile::kBytes);
  }

  /// Keys and values of a unit as groups of their own.
  __device__ void copy(int unit, int units, int pair) const {
    const ListedRow* rows = list_.rows() + unit * device::kUnitTokens;
    const bool exists = unit < units;
    if (exists) copy_rows(rows, keys_, a_.step.k, tile_of(pair));
    device::commit_copies();
    if (exists) copy_rows(rows, values_, a_.step.v, tile_of(pair) + Tile::kBytes);
    device::commit_copies();
  }

  __device__ void copy_rows(const ListedRow* rows, const T* packed, const KvTensor& cache,
                            std::uint32_t tile) const {
    const int chunk = cta_.lane % Tile::kChunks;
    const int first = cta_.lane / Tile::kChunks;
    const bool inside = chunk * 8 < a_.step.head_dim;
#pragma unroll
    for (int i = 0; i < device::kUnitTokens / Tile::kRowsAtOnce; ++i) {
      const int place = first + i * Tile::kRowsAtOnce;
      const std::int32_t row = rows[place].row;
      const bool copied = inside && row != kNoRow;
      const T* source = packed;
      if (copied) {
        source = (row >= 0 ? packed + std::int64_t{row} * a_.step.head_dim
                           : device::row_pointer<T>(cache, cta_.team.sequence, cta_.team.kv_head,
                                                    ~row)) +
                 chunk * 8;
      }
      device::copy_async16_or_zero(tile + Tile::offset(place, chunk), source, copied);
    }
  }

  __device__ void attend(const ListedRow* rows, int pair) {
    float s[kHeads8][4];
    device::score_unit<T, kDim, kHeads8>(s, tile_of(pair), queries_, cta_.lane);
    weigh(s, rows);
    device::wait_copies<2 * Shape::kPairs - 2>();
    __syncwarp();
    sums.template add<T>(s, tile_of(pair) + Tile::kBytes, cta_.lane);
    __syncwarp();
  }

  /// Products become logits in log2, less ln c, of the heads that attend to a row.
  __device__ void weigh(float (&s)[kHeads8][4], const ListedRow* rows) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const ListedRow listed = rows[cta_.lane / 4 + 8 * (i / 2)];
      const auto drawn = list_.drawn_by(listed);
#pragma unroll
      for (int n = 0; n < kHeads8; ++n) {
        const int head = 8 * n + 2 * (cta_.lane % 4) + i % 2;
        const float logit = device::capped(s[n][i] * a_.step.scale, a_.step.logit_cap);
        s[n][i] = -INFINITY;
        if (!drawn.has(head)) continue;
        if (a_.step.scores != nullptr) dump(listed.row, head, logit);
        s[n][i] = (logit - drawn.log_inclusion(head)) * device::kLog2e;
      }
    }
  }

  __device__ void dump(std::int32_t row, int head, float logit) const {
    const std::int32_t token = row >= 0 ? a_.table.members(cta_.number)[row] : ~row;
    const std::int64_t at = cta_.head_row(head) * a_.step.dump_stride + token;
    a_.step.scores[at] = logit;
    a_.step.counts[at] += 1;
  }

  Cta cta_;
  const typename Cta::Arguments& a_;
  Rows list_;
  std::uint32_t ring_;
  const T* keys_;
  const T* values_;
  Queries queries_;
};

}  // namespace kvsim::santapp
