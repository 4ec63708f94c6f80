// ETA in one cooperative launch. Of a CTA's warps some screen blocks by their records, in order,
// and queue what any head of the group takes; the others stream those rows, each once for all
// heads, and add them up as dense attention does. No barrier lies between the two: thresholds are
// known before any key is read.

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "kernels/device/kernel.h"
#include "kernels/device/launch.cuh"
#include "kernels/eta/attend.cuh"
#include "kernels/eta/build_records.cuh"
#include "kernels/eta/screen.cuh"
#include "kernels/eta/settings.h"

namespace kvsim::eta {
namespace {

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(EtaShape<D, kHeads8, kLarge>::kThreads,
                                  EtaShape<D, kHeads8, kLarge>::kCtasPerSm)
    eta_kernel(const __grid_constant__ EtaArguments arguments) {
  using Shape = EtaShape<D, kHeads8, kLarge>;
  char* const shared = device::dynamic_shared();
  if (threadIdx.x == 0) reinterpret_cast<typename Shape::Queue*>(shared + Shape::kQueue)->init();
  __syncthreads();
  if (threadIdx.x >= Shape::kWorkers) {
    Screener<T, Shape, kTeams>(arguments, shared).run();
  } else {
    Attender<T, Shape, kTeams>(arguments, shared).run(arguments.partials.launches.read());
  }
}

class EtaKernel : public Kernel {
 public:
  explicit EtaKernel(const Parameters& parameters) : own_(parameters) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    if (own_.published) return "implementation=published, which has no kernel of ours";
    if (own_.block < 4) return fmt::format("blocks of {} tokens, expected at least 4", own_.block);
    std::string result = step_refusal(step);
    if (!result.empty()) return result;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      constexpr int kBytes = EtaShape<I::kDim, I::kHeads8, I::kLarge>::kSharedBytes;
      if (kBytes + kSystemSharedBytes > limits.shared_bytes_per_sm) {
        result = fmt::format("{} bytes of shared memory per CTA, more than the GPU has", kBytes);
      }
    });
    return result;
  }

  int screened_block() const override { return own_.block; }

  std::int64_t bound_stride(const DeviceStep& step) const override {
    const std::span<const std::int32_t> contexts = contexts_of(step);
    return std::max<std::int64_t>(1, *std::ranges::max_element(contexts) / own_.block);
  }

  std::size_t prepared_bytes(const DeviceStep& step) const override {
    const RecordTable table = records(step, nullptr);
    return static_cast<std::size_t>(step.batch * step.kv_heads * table.team_bytes());
  }

  void prepare(const DeviceStep& step, std::int64_t new_rows, std::byte* prepared,
               CUstream_st* stream) const override {
    build_records(step, new_rows, own_.block, own_.spread, records(step, prepared), stream);
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    return layout(step, limits, nullptr).second;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    if (step.prepared == nullptr || step.thresholds == nullptr) {
      fail<RuntimeError>("eta: launched without block records or thresholds");
    }
    EtaArguments a;
    a.partials = layout(step, limits, workspace).first;
    a.group = step.group();
    a.block_log2 = std::countr_zero(static_cast<unsigned>(own_.block));
    a.chunk = static_cast<std::int32_t>(own_.rule.chunk);
    a.pinned = own_.rule.pinned;
    a.z = own_.z;
    a.gate = own_.gate;
    a.rescue = own_.rule.rescue;
    a.records = records(step, const_cast<std::byte*>(step.prepared));
    a.split = split(step, limits);
    a.step = step;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using T = typename I::Element;
      using Shape = EtaShape<I::kDim, I::kHeads8, I::kLarge>;
      auto* kernel = a.split.ctas_per_team > 0
                         ? eta_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>
                         : eta_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>;
      kvsim::launch(kernel, a, grid_of(a.split), Shape::kThreads, Shape::kSharedBytes, stream,
                    /*cooperative=*/true);
    });
  }

 private:
  static TeamSplit split(const DeviceStep& step, const DeviceLimits& limits) {
    const int ctas =
        ctas_per_sm(head_class(step.head_dim), heads8_of(step.group()), limits.shared_bytes_per_sm);
    return plan_teams(contexts_of(step), step.kv_heads, kSplitUnit, ctas * limits.sms);
  }

  static std::pair<device::Partials, std::size_t> layout(const DeviceStep& step,
                                                         const DeviceLimits& limits,
                                                         std::byte* workspace) {
    Carver carver(workspace);
    const device::Partials partials =
        take_partials(carver, split(step, limits), step.group(), head_class(step.head_dim),
                      /*weighted=*/true);
    return {partials, carver.bytes()};
  }

  RecordTable records(const DeviceStep& step, std::byte* prepared) const {
    return {prepared, std::max<std::int64_t>(1, step.prepared_rows / own_.block), step.head_dim};
  }

  Settings own_;
};

KVSIM_REGISTER_KERNEL("eta", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<EtaKernel>(p);
                      }});

}  // namespace
}  // namespace kvsim::eta
