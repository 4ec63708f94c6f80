// Dense attention in one launch. Each warp streams units of 16 K and 16 V rows through a ring of its
// own, so no CTA-wide barrier lies on the stream; scores are K Q^T on tensor cores with heads on the
// N side; partial results of a team's CTAs are merged by the one that arrives last.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/device/check.h"
#include "kernels/device/kernel.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/merge.cuh"
#include "kernels/device/units.cuh"

namespace kvsim {
namespace {

using namespace device;

constexpr float kLog2e = 1.44269504f;
constexpr int kLeastUnitsPerWarp = 1;

struct DenseArguments {
  DeviceStep step;
  TeamSplit split;
  Partials partials;
};

/// Sizes of one instance: warps and stages fill 128 KB of shared memory, which keeps enough bytes
/// under way for one CTA per SM; or 64 KB where an SM has less than 160 KB.
template <int D, int kHeads8, bool kLarge>
struct DenseShape {
  static constexpr int kWarps = (D == 256 ? 4 : 8) / (kLarge ? 1 : 2);
  static constexpr int kStages = D == 64 ? 4 : 2;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStageBytes = 2 * UnitTile<D>::kBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kHeads = kHeads8 * 8;
  static constexpr int kRow = D + 4;  // floats of a scratch row, padded against bank conflicts
  static constexpr int kScratchFloats = kWarps * kHeads * kRow;
  static constexpr int kSharedBytes = kRingBytes + 4 * (kScratchFloats + 2 * kWarps * kHeads);
};

/// What a warp has accumulated for the heads of a group: o[m][n][i] belongs to column 16 m + lane/4
/// + 8 (i / 2) and head 8 n + 2 (lane % 4) + i % 2; the references are in log2.
template <int D, int kHeads8>
struct Accumulator {
  float o[D / 16][kHeads8][4];
  float highest[kHeads8][2];
  float sum[kHeads8][2];  // of this lane's tokens

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] = 0;
      }
      highest[n][0] = highest[n][1] = -INFINITY;
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

  /// Adds a unit: weights 2^(s - highest), rounded to the type of V for the product.
  template <typename T>
  __device__ void add(float (&s)[kHeads8][4], std::uint32_t v_tile, int lane) {
    std::uint32_t weights[kHeads8][2];
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      raise(n, s[n]);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = rescale(s[n][i], highest[n][i % 2]);
      sum[n][0] += s[n][0] + s[n][2];
      sum[n][1] += s[n][1] + s[n][3];
      weights[n][0] = transpose8x8(pack2<T>(s[n][0], s[n][1]));
      weights[n][1] = transpose8x8(pack2<T>(s[n][2], s[n][3]));
    }
    const int token = (lane & 7) + (lane / 16) * 8;
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      const Fragment4 columns = load_matrix_transposed(
          v_tile + UnitTile<D>::offset(token, 2 * m + ((lane / 8) & 1)));
#pragma unroll
      for (int n = 0; n < kHeads8; ++n) {
        multiply_accumulate<T>(o[m][n], columns, weights[n][0], weights[n][1]);
      }
    }
  }
};

template <typename T, int D, int kHeads8, bool kLarge>
class DenseCta {
 public:
  using Shape = DenseShape<D, kHeads8, kLarge>;

  __device__ DenseCta(const DenseArguments& arguments, char* shared)
      : a_(arguments),
        scratch_(reinterpret_cast<float*>(shared + Shape::kRingBytes)),
        weights_(reinterpret_cast<float2*>(scratch_ + Shape::kScratchFloats)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * Shape::kStageBytes)),
        policy_(evict_first_policy()) {}

  __device__ void run() {
    const int cta = static_cast<int>(blockIdx.x);
    ahead_ = units_of_worker(a_.split, cta, warp_, Shape::kWarps);
    TeamSplit::Team team = ahead_.team;
    std::int64_t position = ahead_.position;
    ahead_.settle(a_.split);
    for (int s = 0; s < Shape::kStages; ++s) copy_ahead(s);
    int stage = 0;
    while (true) {
      queries_.load(static_cast<const T*>(a_.step.q) + first_head(team) * a_.step.head_dim,
                    a_.step.group(), a_.step.head_dim, lane_);
      sums_.clear();
      const std::int64_t stop = min(team.end, ahead_.end);
      for (; position < stop; position += ahead_.step) {
        wait_copies<Shape::kStages - 1>();
        __syncwarp();
        attend(team, position, ring_ + static_cast<std::uint32_t>(stage * Shape::kStageBytes));
        __syncwarp();
        copy_ahead(stage);
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      }
      merge(team, cta);
      if (team.end >= ahead_.end) break;
      team = a_.split.next(team);
    }
  }

 private:
  __device__ std::int64_t first_head(const TeamSplit::Team& team) const {
    return std::int64_t{team.sequence} * a_.step.q_heads + team.kv_head * a_.step.group();
  }

  __device__ int tokens_from(const TeamSplit::Team& team, std::int64_t position) const {
    return a_.step.contexts[static_cast<std::size_t>(team.sequence)] -
           static_cast<int>(position - team.begin) * kUnitTokens;
  }

  /// Starts the copies of the next unit into `stage`; an empty group when there is none.
  __device__ void copy_ahead(int stage) {
    if (!ahead_.done()) {
      const int token = static_cast<int>(ahead_.position - ahead_.team.begin) * kUnitTokens;
      const int tokens = tokens_from(ahead_.team, ahead_.position);
      const std::uint32_t tile = ring_ + static_cast<std::uint32_t>(stage * Shape::kStageBytes);
      const DeviceStep& step = a_.step;
      copy_unit<T, D>(tile,
                      row_pointer<T>(step.k, ahead_.team.sequence, ahead_.team.kv_head, token),
                      step.k.token_stride, tokens, step.head_dim, lane_, policy_);
      copy_unit<T, D>(tile + UnitTile<D>::kBytes,
                      row_pointer<T>(step.v, ahead_.team.sequence, ahead_.team.kv_head, token),
                      step.v.token_stride, tokens, step.head_dim, lane_, policy_);
      ahead_.advance(a_.split);
    }
    commit_copies();
  }

  __device__ void attend(const TeamSplit::Team& team, std::int64_t position, std::uint32_t tile) {
    float s[kHeads8][4];
    score_unit<T, D, kHeads8>(s, tile, queries_, lane_);
    const int tokens = tokens_from(team, position);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool valid = lane_ / 4 + 8 * (i / 2) < tokens;
        s[n][i] = valid ? logit(s[n][i], a_.step.scale, a_.step.logit_cap) * kLog2e : -INFINITY;
      }
    }
    sums_.template add<T>(s, tile + UnitTile<D>::kBytes, lane_);
  }

  /// The warps' results become the CTA's, and the last CTA of the team makes the output of them.
  __device__ void merge(const TeamSplit::Team& team, int cta) {
    __syncthreads();  // the scratch may still be read for the team before
    publish_warp();
    __syncthreads();
    const TeamSplit::Members members = a_.split.members(team);
    const int slot = slot_of(a_.split, team, cta);
    const int group = a_.step.group();
    for (int i = static_cast<int>(threadIdx.x); i < group * D; i += Shape::kThreads) {
      const int head = i / D;
      const int column = i % D;
      float highest = -INFINITY;
      for (int w = 0; w < Shape::kWarps; ++w) {
        highest = fmaxf(highest, weights_[w * Shape::kHeads + head].x);
      }
      float value = 0;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        const float2 weight = weights_[w * Shape::kHeads + head];
        const float factor = rescale(weight.x, highest);
        sum += factor * weight.y;
        value += factor * scratch_[(w * Shape::kHeads + head) * Shape::kRow + column];
      }
      if (members.count == 1) {
        write_output(team, head, column, value, {highest, sum});
      } else {
        a_.partials.values[(std::int64_t{slot} * group + head) * D + column] = value;
        if (column == 0) a_.partials.weights[slot * group + head] = {highest, sum};
      }
    }
    if (members.count == 1) return;
    __shared__ int last;
    const int index = team.sequence * a_.step.kv_heads + team.kv_head;
    if (arrives_last(a_.partials.tickets + index, members.count, &last)) {
      merge_team(team, members);
    }
  }

  __device__ void publish_warp() {
    const int group = a_.step.group();
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = 8 * n + 2 * (lane_ % 4) + h;
        float sum = sums_.sum[n][h];
#pragma unroll
        for (int distance = 4; distance < kWarp; distance *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        const int row = warp_ * Shape::kHeads + head;
        if (lane_ < 4) weights_[row] = {sums_.highest[n][h], sum};
        if (head >= group) continue;
#pragma unroll
        for (int m = 0; m < D / 16; ++m) {
          scratch_[row * Shape::kRow + 16 * m + lane_ / 4] = sums_.o[m][n][h];
          scratch_[row * Shape::kRow + 16 * m + lane_ / 4 + 8] = sums_.o[m][n][h + 2];
        }
      }
    }
  }

  /// All loads of partial results are under way before the first is used.
  __device__ void merge_team(const TeamSplit::Team& team, const TeamSplit::Members& members) {
    constexpr int kAtOnce = 16;
    const int group = a_.step.group();
    const int first_slot = slot_of(a_.split, team, members.first);
    const auto slot = [&](int member) {
      return member == 0 ? first_slot : 2 * (members.first + member);
    };
    for (int i = static_cast<int>(threadIdx.x); i < group * (D / 2); i += Shape::kThreads) {
      const int head = i / (D / 2);
      const int column = 2 * (i % (D / 2));
      float highest = -INFINITY;
      float sum = 0;
      float2 value = {0, 0};
      for (int begin = 0; begin < members.count; begin += kAtOnce) {
        float2 weights[kAtOnce];
        float2 values[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (begin + j >= members.count) {
            weights[j] = {-INFINITY, 0};
            values[j] = {0, 0};
            continue;
          }
          const std::int64_t row = std::int64_t{slot(begin + j)} * group + head;
          weights[j] = __ldcg(a_.partials.weights + row);
          values[j] =
              __ldcg(reinterpret_cast<const float2*>(a_.partials.values + row * D + column));
        }
        float now = highest;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) now = fmaxf(now, weights[j].x);
        const float before = rescale(highest, now);
        sum *= before;
        value.x *= before;
        value.y *= before;
        highest = now;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const float factor = rescale(weights[j].x, highest);
          sum += factor * weights[j].y;
          value.x += factor * values[j].x;
          value.y += factor * values[j].y;
        }
      }
      write_output(team, head, column, value.x, {highest, sum});
      write_output(team, head, column + 1, value.y, {highest, sum});
    }
  }

  __device__ void write_output(const TeamSplit::Team& team, int head, int column, float value,
                               float2 weight) {
    if (column >= a_.step.head_dim) return;
    const std::int64_t row = first_head(team) + head;
    float sum = weight.y;
    if (a_.step.sink_logits != nullptr) {
      const float sink = a_.step.sink_logits[team.kv_head * a_.step.group() + head] * kLog2e;
      const float highest = fmaxf(weight.x, sink);
      const float before = rescale(weight.x, highest);
      value *= before;
      sum = sum * before + rescale(sink, highest);
    }
    store_output(a_.step, row * a_.step.head_dim + column, value / sum);
  }

  const DenseArguments& a_;
  float* scratch_;   // [warps, heads, kRow]
  float2* weights_;  // [warps, heads]: reference and sum
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint64_t policy_;
  UnitStream ahead_;
  QueryFragments<T, D, kHeads8> queries_;
  Accumulator<D, kHeads8> sums_;
};

template <typename T, int D, int kHeads8, bool kLarge>
__global__ void __launch_bounds__(DenseShape<D, kHeads8, kLarge>::kThreads, 1)
    dense_kernel(const __grid_constant__ DenseArguments arguments) {
  extern __shared__ __align__(128) char shared[];
  DenseCta<T, D, kHeads8, kLarge>(arguments, shared).run();
}

struct DenseLaunch {
  template <typename T, int D, int kHeads8, bool kLarge>
  void run(const DenseArguments& arguments, CUstream_st* stream) const {
    using Shape = DenseShape<D, kHeads8, kLarge>;
    launch(dense_kernel<T, D, kHeads8, kLarge>, arguments, arguments.split.ctas, Shape::kThreads,
           Shape::kSharedBytes, stream);
  }
};

class DenseKernel : public Kernel {
 public:
  std::string refusal(const DeviceStep& step, const DeviceLimits&) const override {
    return step_refusal(step);
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    return layout(step, limits, nullptr).second;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    const DenseArguments arguments{step, split(step, limits),
                                   layout(step, limits, workspace).first};
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      DenseLaunch().run<typename I::Element, I::kDim, I::kHeads8, I::kLarge>(arguments, stream);
    });
  }

 private:
  static TeamSplit split(const DeviceStep& step, const DeviceLimits& limits) {
    const int warps = head_class(step.head_dim) == 256 ? 4 : 8;
    return plan_teams(contexts_of(step), step.kv_heads, kUnitTokens, limits.sms,
                      warps * kLeastUnitsPerWarp);
  }

  static std::pair<Partials, std::size_t> layout(const DeviceStep& step,
                                                 const DeviceLimits& limits,
                                                 std::byte* workspace) {
    const auto rows = static_cast<std::size_t>(2 * split(step, limits).ctas * step.group());
    Carver carver(workspace);
    Partials partials;
    partials.tickets =
        carver.take<std::uint32_t>(static_cast<std::size_t>(step.batch * step.kv_heads));
    partials.weights = carver.take<float2>(rows);
    partials.values =
        carver.take<float>(rows * static_cast<std::size_t>(head_class(step.head_dim)));
    return {partials, carver.bytes()};
  }
};

KVSIM_REGISTER_KERNEL("dense", KernelInfo{.make = [](const Parameters&) {
                        return std::make_unique<DenseKernel>();
                      }});

}  // namespace
}  // namespace kvsim
