#pragma once

#include <cstdint>

#include "kernels/device/stream.cuh"

namespace kvsim::device {

/// Scales, caps and masks a warp's products of 16 tokens and puts them where they are finished.
template <int kHeads8>
class ScoreWriter {
 public:
  __device__ ScoreWriter(const StreamArguments& arguments, int lane) : a_(arguments), lane_(lane) {}

  /// `s`: as score_unit() gives it; `scale(n, h)`: of head 8 n + 2 (lane % 4) + h; `stash`: the
  /// block's; `inside`: the first token's place in the block; `tokens`: from it to the context's
  /// end.
  template <bool kTeams, typename Scale>
  __device__ void write(float (&s)[kHeads8][4], const Scale& scale, std::uint32_t* stash,
                        const UnitStream<kTeams>& blocks, int inside, int tokens) const {
    finish(s, scale, tokens);
    store(s, stash + inside);
    if (a_.step.scores != nullptr) dump(s, blocks, inside, tokens);
  }

 private:
  template <typename Scale>
  __device__ void finish(float (&s)[kHeads8][4], const Scale& scale, int tokens) const {
    const bool plain = a_.step.logit_cap <= 0 && tokens >= kUnitTokens;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (plain) {
          s[n][i] *= scale(n, i % 2);
        } else {
          const bool valid = lane_ / 4 + 8 * (i / 2) < tokens;
          s[n][i] = valid ? capped(s[n][i] * scale(n, i % 2), a_.step.logit_cap) : -INFINITY;
        }
      }
    }
  }

  __device__ void store(const float (&s)[kHeads8][4], std::uint32_t* stash) const {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      const int head = 8 * n + 2 * (lane_ % 4);
      std::uint32_t* target = stash + head * kStashRow + lane_ / 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (head + i % 2 < a_.group) {
          target[i % 2 * kStashRow + 8 * (i / 2)] = __float_as_uint(s[n][i]);
        }
      }
    }
  }

  template <bool kTeams>
  __device__ void dump(const float (&s)[kHeads8][4], const UnitStream<kTeams>& blocks, int inside,
                       int tokens) const {
    const std::int64_t head0 = first_head(a_.step, a_.group, blocks.team);
    const int first_token = (blocks.position - blocks.team.begin) * kBlockTokens + inside;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (lane_ % 4) + i % 2;
        const int token = lane_ / 4 + 8 * (i / 2);
        if (head >= a_.group || token >= tokens) continue;
        a_.step.scores[(head0 + head) * a_.step.dump_stride + first_token + token] = s[n][i];
      }
    }
  }

  const StreamArguments& a_;
  int lane_;
};

/// What the finishing warps do with the CTA's blocks, from the first on. Each has a Finish, made of
/// `Finish::Arguments` (StreamArguments or more) and shared memory:
///   takes(blocks, index)                   whether the warp has to do with the CTA's next block
///   block(shared, blocks, index, launch)   its scores are there (scores_of)
///   close(team, launch)                    the CTA's blocks of a team have all been there
/// `open(team, index)` is called before a team's first block, the CTA's number `index`.
template <typename Finish, bool kTeams, typename Open>
__device__ void finish_blocks(const typename Finish::Arguments& a, char* base,
                              const StreamShared& shared, UnitStream<kTeams> blocks,
                              std::uint32_t launch, const Open& open) {
  Finish finish(a, base);
  bool opened = false;
#pragma unroll 1
  for (int index = 0; !blocks.done(); ++index) {
    const TeamSplit::Team team = blocks.team;
    if (!opened) open(team, index);
    if (finish.takes(blocks, index)) {
      wait_for(shared.scored + index);
      finish.block(shared, blocks, index, launch);
    }
    if (is_spilled(a, index)) arrive(shared.finished + index);
    opened = !blocks.advance(a.split) && !blocks.done();
    if (!opened) finish.close(team, launch);
  }
}

/// The CTA's share of the keys: scores on chip, then what `Finish` (finish_blocks) makes of them.
template <typename T, typename Shape, bool kTeams, typename Finish>
class KeyStream {
 public:
  using Blocks = UnitStream<kTeams>;

  __device__ KeyStream(const typename Finish::Arguments& arguments, char* shared)
      : a_(arguments),
        base_(shared),
        shared_(arguments, shared),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * UnitTile<D>::kBytes)),
        ahead_(units_of_cta<kTeams>(a_.split)),
        keys_(a_.step.k, a_.step.head_dim, lane_, evict_first_policy()),
        writer_(arguments, lane_) {}

  /// By all threads of the CTA. Afterwards the streaming warps have scored the CTA's blocks; the
  /// others have finished them. `launches`: as read from the counter.
  __device__ void run(unsigned long long launches) {
    Blocks blocks = ahead_;
    if (warp_ < Shape::kWarps) {
      seek();
#pragma unroll 1
      for (int s = 0; s < Shape::kStages; ++s) {
        copy_ahead(ring_ + s * UnitTile<D>::kBytes);
        if (s == 0) load_queries(blocks.team);  // behind the whole ring's they would wait for it
      }
    } else {
      const int thread = static_cast<int>(threadIdx.x) - Shape::kWorkers;
      for (int i = thread; i < a_.blocks_per_cta; i += Shape::kFinishWarps * kWarp) {
        init_barrier(shared_.scored + i, Shape::kWorkers);
        init_barrier(shared_.finished + i, Shape::kFinishWarps * kWarp);
      }
    }
    __syncthreads();
    if (warp_ < Shape::kWarps) {
      score_blocks(blocks);
    } else {
      finish_blocks<Finish>(a_, base_, shared_, blocks, LaunchCounter::number(launches),
                            [](const TeamSplit::Team&, int) {});
    }
  }

 private:
  static constexpr int D = Shape::kDim;
  static constexpr int kHeads8 = Shape::kHeads8;

  __device__ void load_queries(const TeamSplit::Team& team) {
    const int group = a_.group;
    const std::int64_t head = std::int64_t{team.sequence} * a_.step.q_heads + team.kv_head * group;
    queries_.load(static_cast<const T*>(a_.step.q) + head * a_.step.head_dim, group,
                  a_.step.head_dim, lane_);
  }

  __device__ int tokens_from(const Blocks& blocks) const {
    return context_of<kTeams>(a_.step, blocks.team.sequence) -
           (blocks.position - blocks.team.begin) * kBlockTokens;
  }

  /// The first token of this warp's next unit.
  __device__ int ahead_token() const {
    return (ahead_.position - ahead_.team.begin) * kBlockTokens +
           (warp_ + ahead_unit_ * Shape::kWarps) * kUnitTokens;
  }

  __device__ void seek() {
    if (ahead_.done()) return;
    // A warp's first unit may lie past the end of a short block; its rows are not read then.
    ahead_tokens_ = tokens_from(ahead_) - warp_ * kUnitTokens;
    if (ahead_tokens_ > 0) keys_.seek(ahead_.team.sequence, ahead_.team.kv_head, ahead_token());
  }

  /// Starts the copy of this warp's next unit; an empty group when none is left.
  __device__ void copy_ahead(std::uint32_t tile) {
    if (!ahead_.done()) {
      if (ahead_tokens_ > 0) keys_.copy(tile, ahead_tokens_);
      int jump = Shape::kWarps * kUnitTokens;
      bool moved = false;
      if (++ahead_unit_ == Shape::kUnitsPerWarp) {
        ahead_unit_ = 0;
        jump += (ahead_.step - 1) * kBlockTokens;
        moved = ahead_.advance(a_.split);
      }
      if (moved) {
        seek();
      } else {
        ahead_tokens_ -= jump;
        if (ahead_tokens_ > 0) {
          keys_.advance(jump, ahead_.team.sequence, ahead_.team.kv_head, ahead_token());
        }
      }
    }
    commit_copies();
  }

  __device__ void score_blocks(Blocks& blocks) {
    tile_ = ring_;
#pragma unroll 1
    for (int index = 0; !blocks.done(); ++index) {
      score_block(blocks, index);
      if (blocks.advance(a_.split)) load_queries(blocks.team);
    }
  }

  /// Scores this warp's units of a block into the stash.
  __device__ void score_block(const Blocks& blocks, int index) {
    // A staging slot is free when the block before it there is finished.
    if (is_spilled(a_, index - a_.staging_blocks)) {
      wait_for(shared_.finished + index - a_.staging_blocks);
    }
    std::uint32_t* stash = scores_of(a_, shared_, index);
    int tokens = tokens_from(blocks) - warp_ * kUnitTokens;
#pragma unroll 1
    for (int u = 0; u < Shape::kUnitsPerWarp; ++u) {
      const int inside = (warp_ + u * Shape::kWarps) * kUnitTokens;
      wait_copies<Shape::kStages - 1>();
      __syncwarp();
      float s[kHeads8][4];
      score_unit<T, D, kHeads8>(s, tile_, queries_, lane_);
      __syncwarp();
      copy_ahead(tile_);
      tile_ = tile_ + UnitTile<D>::kBytes == ring_ + Shape::kStages * UnitTile<D>::kBytes
                  ? ring_
                  : tile_ + UnitTile<D>::kBytes;
      writer_.write(
          s, [this](int, int) { return a_.step.scale; }, stash, blocks, inside, tokens);
      tokens -= Shape::kWarps * kUnitTokens;
    }
    arrive(shared_.scored + index);
  }

  const typename Finish::Arguments& a_;
  char* base_;  // of shared memory
  StreamShared shared_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint32_t tile_ = 0;  // of the ring: the one that is scored next
  Blocks ahead_;
  int ahead_unit_ = 0;    // of this warp in the block
  int ahead_tokens_ = 0;  // from the unit to the end of its sequence
  UnitReader<T, D> keys_;
  QueryFragments<T, D, kHeads8> queries_;
  ScoreWriter<kHeads8> writer_;
};

}  // namespace kvsim::device
