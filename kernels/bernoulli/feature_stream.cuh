#pragma once

#include <cstdint>

#include "kernels/bernoulli/feature_pieces.cuh"
#include "kernels/device/key_stream.cuh"

namespace kvsim::device {

/// Shared memory of a FeatureStream at `table_offset`.
template <typename Shape>
constexpr int feature_table_bytes() {
  return static_cast<int>(sizeof(FeatureTable<Shape::kDim, Shape::kHeads8>) + 127) / 128 * 128;
}

/// KeyStream for Bernoulli scores from feature-major keys. Finishing warps draw a team's queries
/// before they finish its blocks; streaming warps wait for that, so between teams the ring runs
/// empty.
template <typename T, typename Shape, bool kTeams, typename Finish>
class FeatureStream {
 public:
  using Blocks = UnitStream<kTeams>;

  __device__ FeatureStream(const typename Finish::Arguments& arguments, char* shared)
      : a_(arguments),
        base_(shared),
        shared_(arguments, shared),
        table_(*reinterpret_cast<Table*>(shared + arguments.table_offset)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * Reader::kSlotBytes)),
        keys_(a_.step.k_by_feature, table_, lane_),
        writer_(arguments, lane_) {}

  /// As KeyStream::run().
  __device__ void run(unsigned long long launches) {
    Blocks blocks = units_of_cta<kTeams>(a_.split);
    const int thread = static_cast<int>(threadIdx.x) - Shape::kWorkers;
    if (thread >= 0) {
      if (thread == 0) init_barrier(&table_.drawn, kDrawers);
      for (int i = thread; i < a_.blocks_per_cta; i += kDrawers) {
        init_barrier(shared_.scored + i, Shape::kWorkers);
        init_barrier(shared_.finished + i, kDrawers);
      }
    }
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
  static constexpr int kParts = kBlockTokens / kFeatureTokens / Shape::kWarps;  // of a warp's block
  static_assert(kParts >= 1);
  static_assert(Shape::kRingBytes >= Shape::kMostGroup * D * 4);  // where weights are drawn
  using Table = FeatureTable<D, kHeads8>;
  using Reader = FeatureReader<T, D, kHeads8>;

  /// The piece that is copied next.
  struct Ahead {
    Blocks blocks;
    std::int32_t end = 0;  // of the team's blocks, or the CTA's
    int part = 0;
    int piece = 0;
  };

  __device__ void finish(const Blocks& blocks, int thread, std::uint32_t launch) const {
    const FeatureDrawing<T, D, kHeads8, kDrawers> drawing(a_.step, a_.query, a_.group, thread,
                                                          table_, reinterpret_cast<float*>(base_));
    finish_blocks<Finish>(a_, base_, shared_, blocks, launch,
                          [&](const TeamSplit::Team& team, int index) {
                            // Nobody needs the ring and the features of the team before.
                            if (index > 0) wait_for(shared_.scored + index - 1);
                            drawing.draw(team);
                            arrive(&table_.drawn);
                          });
  }

  __device__ void score_teams(Blocks& blocks) {
    int index = 0;
#pragma unroll 1
    for (int team = 0; !blocks.done(); ++team) {
      wait_for(&table_.drawn, team % 2);
      pieces_ = keys_.pieces();
      load_scales();
      ahead_ = {blocks, min(blocks.team.end, blocks.end), 0, 0};
#pragma unroll 1
      for (int s = 0; s < Shape::kStages; ++s) copy_ahead(ring_ + s * Reader::kSlotBytes);
      slot_ = ring_;
      bool left = false;
      while (!left && !blocks.done()) {
        score_block(blocks, index++);
        left = blocks.advance(a_.split);
      }
    }
  }

  __device__ void load_scales() {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      scales_[n][0] = table_.scales[8 * n + 2 * (lane_ % 4)];
      scales_[n][1] = table_.scales[8 * n + 2 * (lane_ % 4) + 1];
    }
  }

  __device__ int first_token(const Blocks& blocks, int part) const {
    return (blocks.position - blocks.team.begin) * kBlockTokens +
           (warp_ + part * Shape::kWarps) * kFeatureTokens;
  }

  /// Starts the copy of this warp's next piece; an empty group when the team has none left.
  __device__ void copy_ahead(std::uint32_t slot) {
    if (ahead_.blocks.position < ahead_.end && pieces_.pieces > 0) {
      const TeamSplit::Team& team = ahead_.blocks.team;
      const int token = first_token(ahead_.blocks, ahead_.part);
      const int tokens = context_of<kTeams>(a_.step, team.sequence) - token;
      if (tokens > 0) keys_.copy(slot, pieces_, ahead_.piece, team, token, tokens);
      if (++ahead_.piece == pieces_.pieces) {
        ahead_.piece = 0;
        if (++ahead_.part == kParts) {
          ahead_.part = 0;
          ahead_.blocks.position += ahead_.blocks.step;
        }
      }
    }
    commit_copies();
  }

  __device__ void score_block(const Blocks& blocks, int index) {
    // A staging slot is free when the block before it there is finished.
    if (is_spilled(a_, index - a_.staging_blocks)) {
      wait_for(shared_.finished + index - a_.staging_blocks);
    }
    std::uint32_t* stash = scores_of(a_, shared_, index);
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
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
      write(s, blocks, stash, part);
    }
    arrive(shared_.scored + index);
  }

  __device__ void write(typename Reader::Scores& s, const Blocks& blocks, std::uint32_t* stash,
                        int part) const {
    const int inside = (warp_ + part * Shape::kWarps) * kFeatureTokens;
    const int tokens =
        context_of<kTeams>(a_.step, blocks.team.sequence) - first_token(blocks, part);
    const auto scale = [this](int n, int h) { return scales_[n][h]; };
#pragma unroll
    for (int m = 0; m < kFeatureTokens / kUnitTokens; ++m) {
      writer_.write(s[m], scale, stash, blocks, inside + m * kUnitTokens, tokens - m * kUnitTokens);
    }
  }

  const typename Finish::Arguments& a_;
  char* base_;  // of shared memory
  StreamShared shared_;
  Table& table_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint32_t slot_ = 0;  // of the ring: the piece that is scored next
  Reader keys_;
  ScoreWriter<kHeads8> writer_;
  FeaturePieces pieces_;
  float scales_[kHeads8][2];
  Ahead ahead_;
};

}  // namespace kvsim::device
