// bernoulli-qk in one cooperative launch: dense attention (kernels/dense/kernel.cu) whose scores
// come from those features of K that the group's drawn queries read. Each warp streams 64 tokens at
// a time: the pieces of their features, then their V rows.

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/bernoulli/feature_pieces.cuh"
#include "kernels/bernoulli/scoring.h"
#include "kernels/dense/accumulator.cuh"
#include "kernels/device/kernel.h"
#include "kernels/device/launch.cuh"

namespace kvsim {
namespace {

using namespace device;

struct BernoulliArguments {
  Partials partials;
  std::int32_t group = 1;  // of the step: a division less
  QueryDraws query;
  TeamSplit split;  // in units of kFeatureTokens
  DeviceStep step;
};

/// As DenseShape: slots of 16 rows, or of as many bytes of features.
template <int D, int kHeads8, bool kLarge>
struct BernoulliShape {
  static constexpr int kWarps = bernoulli_warps(D, kLarge);
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kSlots = D == 64 ? 8 : 4;  // of a warp
  static constexpr int kSlotBytes = UnitTile<D>::kBytes;
  static constexpr int kRingBytes = kWarps * kSlots * kSlotBytes;
  using Merge = DenseMerge<D, kHeads8, kWarps>;
  using Table = FeatureTable<D, kHeads8>;
  static constexpr int kWeights = kRingBytes;
  static constexpr int kTable = kWeights + Merge::kWeightBytes;
  static constexpr int kSharedBytes = kTable + static_cast<int>(sizeof(Table));
  static_assert(kTable % alignof(Table) == 0);
  // While queries are drawn and sums are merged the ring is empty.
  static constexpr int kWarpFloats = kSlots * kSlotBytes / 4;
  static_assert(kWarpFloats >= Merge::kWarpFloats);
  static_assert(kSharedBytes <= (kLarge ? 160 : 96) * 1024);
};

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
class BernoulliCta {
 public:
  using Shape = BernoulliShape<D, kHeads8, kLarge>;

  __device__ BernoulliCta(const BernoulliArguments& arguments, char* shared)
      : a_(arguments),
        ring_scratch_(reinterpret_cast<WeightedPair*>(shared)),
        merge_(a_.partials, a_.step, a_.group, shared, Shape::kWarpFloats,
               shared + Shape::kWeights),
        table_(*reinterpret_cast<typename Shape::Table*>(shared + Shape::kTable)),
        drawing_(a_.step, a_.query, a_.group, table_, reinterpret_cast<float*>(shared)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kSlots * Shape::kSlotBytes)),
        keys_(a_.step, table_, lane_),
        values_(a_.step.v, a_.step.head_dim, lane_, evict_first_policy()) {}

  __device__ void run() {
    const unsigned long long launches = a_.partials.launches.read();
    const UnitStream<kTeams> share = units_of_warp<kTeams>(a_.split, 0, 1);
    const TeamSplit::Team first = share.team;
    team_ = first;
    int begin = share.position;
    while (true) {
      const int end = kTeams ? team_.end : min(team_.end, share.end);
      if constexpr (kTeams) begin = team_.begin + static_cast<int>(blockIdx.x) * Shape::kWarps;
      attend_team(begin + warp_, end);
      if (launch_ == 0) launch_ = LaunchCounter::number(launches);
      merge_.merge_warps(sums_, team_, sharing_of<kTeams>(a_.split, a_.partials, team_), launch_);
      if (kTeams || end == share.end) break;
      begin = end;
      team_ = a_.split.next(team_);
      __syncthreads();  // the team before may still be read
    }
    merge_.template merge_cut_teams<kTeams>(a_.split, first, team_, ring_scratch_, launch_);
    __syncthreads();
    if (threadIdx.x == 0) a_.partials.launches.leave(a_.split.ctas);
  }

 private:
  using Reader = FeatureReader<T, D, kHeads8>;
  static constexpr int kParts = Reader::kParts;  // of a unit's V rows, in slots of their own
  static_assert(Reader::kSlotBytes == Shape::kSlotBytes);
  static_assert(Shape::kRingBytes >= 4 * FeatureDrawing<T, D, kHeads8>::kScratchFloats);

  /// From one unit of a warp to its next. CTAs that have a team to themselves take turns, too: what
  /// is read at a time then lies together.
  __device__ static int step() {
    return Shape::kWarps * (kTeams ? static_cast<int>(gridDim.x) : 1);
  }

  /// This warp's units of the team, from `begin` to before `end`.
  __device__ void attend_team(int begin, int end) {
    const int thread = static_cast<int>(threadIdx.x);
    // Not before: queries would wait behind the values.
    drawing_.load(team_, thread, Shape::kThreads, [&] {
      if (begin < end) prefetch_values(begin);
    });
    drawing_.draw(team_, thread, Shape::kThreads);
    __syncthreads();
    pieces_ = keys_.pieces();
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scales_[n][h] = table_.scales[8 * n + 2 * (lane_ % 4) + h] * kLog2e;
      }
    }
    ahead_ = begin;
    ahead_end_ = end;
    ahead_slot_ = 0;
#pragma unroll 1
    for (int s = 0; s < Shape::kSlots; ++s) copy_ahead(ring_ + s * Shape::kSlotBytes);
    slot_ = ring_;
    sums_.clear();
#pragma unroll 1
    for (int unit = begin; unit < end; unit += step()) attend(tokens_from(unit));
  }

  /// The memory need not wait for what is drawn: a warp's first V rows come to the L2 meanwhile,
  /// where one instruction asks for them all.
  __device__ void prefetch_values(int unit) const {
    const KvTensor& v = a_.step.v;
    if (lane_ != 0 || v.pages != nullptr || v.token_stride != a_.step.head_dim) return;
    const int rows = min(tokens_from(unit), kFeatureTokens);
    prefetch_to_l2(row_pointer<T>(v, team_.sequence, team_.kv_head, first_token(unit)),
                   2 * rows * a_.step.head_dim);
  }

  __device__ int first_token(int unit) const { return (unit - team_.begin) * kFeatureTokens; }
  __device__ int tokens_from(int unit) const {
    return context_of<kTeams>(a_.step, team_.sequence) - first_token(unit);
  }

  /// Starts the copy that comes next: a piece of a unit's features, or 16 of its V rows. An empty
  /// group when the team has none left.
  __device__ void copy_ahead(std::uint32_t slot) {
    if (ahead_ < ahead_end_) {
      const int token = first_token(ahead_);
      const int tokens = tokens_from(ahead_);
      if (ahead_slot_ < pieces_.pieces) {
        keys_.copy(slot, pieces_, ahead_slot_, team_, token, tokens);
      } else {
        const int inside = (ahead_slot_ - pieces_.pieces) * kUnitTokens;
        if (inside < tokens) values_.seek(team_.sequence, team_.kv_head, token + inside);
        values_.copy(slot, tokens - inside);
      }
      if (++ahead_slot_ == pieces_.pieces + kParts) {
        ahead_slot_ = 0;
        ahead_ += step();
      }
    }
    commit_copies();
  }

  /// Calls use(slot) when the next slot is there, then fills it anew.
  template <typename Use>
  __device__ void with_slot(const Use& use) {
    wait_copies<Shape::kSlots - 1>();
    __syncwarp();
    use(slot_);
    __syncwarp();
    copy_ahead(slot_);
    slot_ += Shape::kSlotBytes;
    if (slot_ == ring_ + Shape::kSlots * Shape::kSlotBytes) slot_ = ring_;
  }

  __device__ void attend(int tokens) {
    typename Reader::Scores s = {};
#pragma unroll 1
    for (int piece = 0; piece < pieces_.pieces; ++piece) {
      with_slot(
          [&](std::uint32_t slot) { keys_.score(s, slot, pieces_, piece, !a_.query.group_mean); });
    }
#pragma unroll 1  // scores move up: four times the code would have to be fetched
    for (int inside = 0; inside < kFeatureTokens; inside += kUnitTokens) {
      finish(s[0], inside, tokens);
      with_slot([&](std::uint32_t slot) { sums_.template add<T>(s[0], slot, lane_); });
#pragma unroll
      for (int m = 1; m < kParts; ++m) {
#pragma unroll
        for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[m - 1][n][i] = s[m][n][i];
        }
      }
    }
  }

  /// Scales, caps and masks the products of 16 tokens from `inside` on.
  __device__ void finish(float (&s)[kHeads8][4], int inside, int tokens) const {
    const float cap = a_.step.logit_cap * kLog2e;
    const bool plain = cap <= 0 && inside + kUnitTokens <= tokens;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] *= scales_[n][i % 2];
        if (plain) continue;
        const bool valid = inside + lane_ / 4 + 8 * (i / 2) < tokens;
        s[n][i] = valid ? capped(s[n][i], cap) : -INFINITY;
      }
    }
    if (a_.step.scores != nullptr) dump(s, inside, tokens);
  }

  __device__ void dump(const float (&s)[kHeads8][4], int inside, int tokens) const {
    const std::int64_t head0 = first_head(a_.step, a_.group, team_);
    const int token0 = context_of<kTeams>(a_.step, team_.sequence) - tokens + inside;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (lane_ % 4) + i % 2;
        const int token = lane_ / 4 + 8 * (i / 2);
        if (head >= a_.group || inside + token >= tokens) continue;
        a_.step.scores[(head0 + head) * a_.step.dump_stride + token0 + token] = s[n][i] / kLog2e;
      }
    }
  }

  const BernoulliArguments& a_;
  WeightedPair* ring_scratch_;  // the ring, when it is empty
  typename Shape::Merge merge_;
  typename Shape::Table& table_;
  FeatureDrawing<T, D, kHeads8> drawing_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint32_t slot_ = 0;    // of the ring: used next
  std::uint32_t launch_ = 0;  // this launch's number
  TeamSplit::Team team_{};
  int ahead_ = 0;  // unit that is copied next
  int ahead_end_ = 0;
  int ahead_slot_ = 0;  // of its slots
  Reader keys_;
  UnitReader<T, D> values_;
  FeaturePieces pieces_;
  float scales_[kHeads8][2];
  Accumulator<D, kHeads8> sums_;
};

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(BernoulliShape<D, kHeads8, kLarge>::kThreads, 1)
    bernoulli_kernel(const __grid_constant__ BernoulliArguments arguments) {
  char* const shared = dynamic_shared();
  BernoulliCta<T, D, kHeads8, kLarge, kTeams>(arguments, shared).run();
}

class BernoulliKernel : public Kernel {
 public:
  BernoulliKernel(const QueryDraws& query, KeyLayout layout) : query_(query), layout_(layout) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    if (layout_ != KeyLayout::kFeatureMajor) return token_major_refusal();
    std::string result = step_refusal(step);
    if (!result.empty()) return result;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      constexpr int kBytes = BernoulliShape<I::kDim, I::kHeads8, I::kLarge>::kSharedBytes;
      if (kBytes + kSystemSharedBytes > limits.shared_bytes_per_sm) {
        result = fmt::format("{} bytes of shared memory per CTA, more than the GPU has", kBytes);
      }
    });
    return result;
  }

  bool wants_features() const override { return true; }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    return arguments(step, limits, nullptr).second;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    KVSIM_CHECK(step.k_by_feature.data != nullptr);
    const BernoulliArguments a = arguments(step, limits, workspace).first;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using T = typename I::Element;
      using Shape = BernoulliShape<I::kDim, I::kHeads8, I::kLarge>;
      auto* kernel = a.split.ctas_per_team > 0
                         ? bernoulli_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>
                         : bernoulli_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>;
      kvsim::launch(kernel, a, grid_of(a.split), Shape::kThreads, Shape::kSharedBytes, stream,
                    /*cooperative=*/true);
    });
  }

 private:
  /// Arguments of a launch and the workspace they take.
  std::pair<BernoulliArguments, std::size_t> arguments(const DeviceStep& step,
                                                       const DeviceLimits& limits,
                                                       std::byte* workspace) const {
    BernoulliArguments a;
    a.group = step.group();
    a.query = query_;
    a.split =
        plan_teams(contexts_of(step), step.kv_heads, feature_split_unit(step.head_dim), limits.sms);
    a.step = step;
    Carver carver(workspace);
    a.partials = take_partials(carver, a.split, a.group, head_class(step.head_dim),
                               /*weighted=*/true);
    return {a, carver.bytes()};
  }

  QueryDraws query_;
  KeyLayout layout_;
};

KVSIM_REGISTER_KERNEL("bernoulli-qk", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<BernoulliKernel>(query_draws(p), key_layout(p));
                      }});

}  // namespace
}  // namespace kvsim
