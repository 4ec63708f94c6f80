#pragma once

#include <cstdint>

#include "kernels/bernoulli/feature_arguments.cuh"
#include "kernels/bernoulli/feature_pieces.cuh"
#include "kernels/device/key_stream.cuh"

namespace kvsim::device {

/// Shared memory of a FeatureStream at `table_offset`.
template <typename Shape>
constexpr int feature_table_bytes() {
  return static_cast<int>(sizeof(FeatureTable<Shape::kDim, Shape::kHeads8>) + 127) / 128 * 128;
}

/// KeyStream for Bernoulli scores from feature-major keys. All threads draw the first team's
/// queries; those of later teams the finishing warps, for which the streaming ones wait: the ring
/// is empty then.
template <typename T, typename Shape, bool kTeams, typename Finish>
class FeatureStream {
 public:
  using Blocks = UnitStream<kTeams>;

  __device__ FeatureStream(const FeatureArguments& arguments, char* shared)
      : a_(arguments),
        base_(shared),
        shared_(arguments, shared),
        table_(*reinterpret_cast<Table*>(shared + arguments.table_offset)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * Reader::kSlotBytes)),
        keys_(a_.step, table_, lane_),
        writer_(arguments, lane_) {}

  /// As KeyStream::run().
  __device__ void run(unsigned long long launches) {
    Blocks blocks = units_of_cta<kTeams>(a_.split);
    const int thread = static_cast<int>(threadIdx.x) - Shape::kWorkers;
    if (thread >= 0) {
      if (thread == 0) {
        init_barrier(&table_.drawn, kDrawers);
        init_barrier(&table_.left, Shape::kWorkers);
      }
      for (int i = thread; i < a_.blocks_per_cta; i += kDrawers) {
        init_barrier(shared_.scored + i, kBlockWarps * kWarp);
        init_barrier(shared_.finished + i, kDrawers);
      }
    }
    if (!blocks.done()) draw(blocks.team, static_cast<int>(threadIdx.x), Shape::kThreads);
    __syncthreads();
    if (thread < 0) {
      score_teams(blocks);
    } else {
      finish(blocks, thread, LaunchCounter::number(launches));
    }
  }

 private:
  static constexpr int D = Shape::kDim;
  static constexpr int kHeads8 = Shape::kHeads8;
  static constexpr int kDrawers = Shape::kFinishWarps * kWarp;
  static constexpr int kBlockWarps = kBlockTokens / kFeatureTokens;  // that share a block,
  static constexpr int kTurns = Shape::kWarps / kBlockWarps;  // and take every so many of them
  static_assert(kTurns >= 1);
  using Table = FeatureTable<D, kHeads8>;
  using Reader = FeatureReader<T, D, kHeads8>;
  using Drawing = FeatureDrawing<T, D, kHeads8>;
  static_assert(Shape::kRingBytes >= 4 * Drawing::kScratchFloats);

  /// The piece that is copied next.
  struct Ahead {
    int position = 0;  // of its block
    int end = 0;       // of the team's blocks, or the CTA's
    int piece = 0;
  };

  __device__ void finish(const Blocks& blocks, int thread, std::uint32_t launch) const {
    int teams = 0;  // that were left
    finish_blocks<Finish>(a_, base_, shared_, blocks, launch,
                          [&](const TeamSplit::Team& team, int index) {
                            if (index == 0) return;               // drawn by all threads
                            wait_for(&table_.left, teams++ % 2);  // so is the ring
                            draw(team, thread, kDrawers);
                            arrive(&table_.drawn);
                          });
  }

  __device__ void draw(const TeamSplit::Team& team, int thread, int drawers) const {
    const Drawing drawing(a_.step, a_.query, a_.group, table_, reinterpret_cast<float*>(base_));
    drawing.load(team, thread, drawers, [] {});
    drawing.draw(team, thread, drawers);
  }

  __device__ void score_teams(Blocks& blocks) {
    int index = 0;
#pragma unroll 1
    for (int team = 0; !blocks.done(); ++team) {
      if (team > 0) wait_for(&table_.drawn, (team - 1) % 2);
      team_ = blocks.team;
      pieces_ = keys_.pieces();
      load_scales();
      const int end = min(team_.end, blocks.end);
      const int wait = (warp_ / kBlockWarps + kTurns - index % kTurns) % kTurns;  // for its turn
      ahead_ = {blocks.position + wait * blocks.step, end, 0};
      step_ = kTurns * blocks.step;
#pragma unroll 1
      for (int s = 0; s < Shape::kStages; ++s) copy_ahead(ring_ + s * Reader::kSlotBytes);
      slot_ = ring_;
#pragma unroll 1
      for (; blocks.position < end; ++index) {
        if (index % kTurns == warp_ / kBlockWarps) score_block(blocks, index);
        blocks.position += blocks.step;
      }
      arrive(&table_.left);
      blocks.settle(a_.split);
    }
  }

  __device__ void load_scales() {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      scales_[n][0] = table_.scales[8 * n + 2 * (lane_ % 4)];
      scales_[n][1] = table_.scales[8 * n + 2 * (lane_ % 4) + 1];
    }
  }

  /// This warp's first token of a block.
  __device__ int first_token(int position) const {
    return (position - team_.begin) * kBlockTokens + inside();
  }
  __device__ int inside() const { return warp_ % kBlockWarps * kFeatureTokens; }
  __device__ int tokens_from(int token) const {
    return context_of<kTeams>(a_.step, team_.sequence) - token;
  }

  /// Starts the copy of this warp's next piece; an empty group when the team has none left.
  __device__ void copy_ahead(std::uint32_t slot) {
    if (ahead_.position < ahead_.end && pieces_.pieces > 0) {
      const int token = first_token(ahead_.position);
      const int tokens = tokens_from(token);
      if (tokens > 0) keys_.copy(slot, pieces_, ahead_.piece, team_, token, tokens);
      if (++ahead_.piece == pieces_.pieces) {
        ahead_.piece = 0;
        ahead_.position += step_;
      }
    }
    commit_copies();
  }

  __device__ void score_block(const Blocks& blocks, int index) {
    // A staging slot is free when the block before it there is finished.
    if (is_spilled(a_, index - a_.staging_blocks)) {
      wait_for(shared_.finished + index - a_.staging_blocks);
    }
    typename Reader::Scores s = {};
#pragma unroll 1
    for (int piece = 0; piece < pieces_.pieces; ++piece) {
      wait_copies<Shape::kStages - 1>();
      __syncwarp();
      keys_.score(s, slot_, pieces_, piece, !a_.query.group_mean);
      __syncwarp();
      copy_ahead(slot_);
      slot_ += Reader::kSlotBytes;
      if (slot_ == ring_ + Shape::kStages * Reader::kSlotBytes) slot_ = ring_;
    }
    write(s, blocks, scores_of(a_, shared_, index));
    arrive(shared_.scored + index);
  }

  __device__ void write(typename Reader::Scores& s, const Blocks& blocks,
                        std::uint32_t* stash) const {
    const int tokens = tokens_from(first_token(blocks.position));
    const auto scale = [this](int n, int h) { return scales_[n][h]; };
#pragma unroll
    for (int m = 0; m < Reader::kParts; ++m) {
      writer_.write(s[m], scale, stash, blocks, inside() + m * kUnitTokens,
                    tokens - m * kUnitTokens);
    }
  }

  const FeatureArguments& a_;
  char* base_;  // of shared memory
  StreamShared shared_;
  Table& table_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint32_t slot_ = 0;  // of the ring: the piece that is scored next
  Reader keys_;
  ScoreWriter<kHeads8> writer_;
  TeamSplit::Team team_{};
  FeaturePieces pieces_;
  float scales_[kHeads8][2];
  Ahead ahead_;
  int step_ = 1;  // between blocks of this warp
};

}  // namespace kvsim::device
