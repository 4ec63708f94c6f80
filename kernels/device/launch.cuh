#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <string>

#include "core/device_limits.h"
#include "kernels/device/check.cuh"
#include "kernels/device/exchange.cuh"
#include "kernels/device/geometry.h"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"

namespace kvsim {

/// Lays arrays out in a workspace, each on a 256-byte boundary; with a null workspace it only adds
/// up their bytes.
class Carver {
 public:
  explicit Carver(std::byte* workspace) : workspace_(workspace) {}

  template <typename T>
  T* take(std::size_t count) {
    const std::size_t offset = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return workspace_ == nullptr ? nullptr : reinterpret_cast<T*>(workspace_ + offset);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* workspace_;
  std::size_t bytes_ = 0;
};

/// Room for the partial results of a split's CTAs; `weighted`: with softmax states.
inline device::Partials take_partials(Carver& carver, const TeamSplit& split, int group, int dim,
                                      bool weighted) {
  device::Partials partials;
  partials.pairs = group * dim / 2;
  if (split.ctas_per_team > 0) {
    partials.slice = (partials.pairs + split.ctas_per_team - 1) / split.ctas_per_team;
  }
  const auto slots = static_cast<std::size_t>(2 * split.ctas);
  partials.launches.left = carver.take<unsigned long long>(1);
  if (weighted) {
    partials.weights = carver.take<device::TaggedPair>(slots * static_cast<std::size_t>(group));
  }
  partials.values =
      carver.take<device::TaggedPair>(slots * static_cast<std::size_t>(partials.pairs));
  return partials;
}

/// Whether an SM of the architecture has at least 160 KB of shared memory.
constexpr bool has_large_shared(int architecture) {
  return architecture == 800 || architecture == 900 || architecture == 1000 || architecture == 1030;
}
/// The architectures of this build decide which instances are compiled.
template <bool kLarge>
constexpr bool is_compiled() {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (has_large_shared(architecture) == kLarge) return true;
  }
  return false;
}

/// One instance of a kernel template.
template <typename T, int D, int kHeads8Value, bool kLargeValue>
struct Instance {
  using Element = T;
  static constexpr int kDim = D;
  static constexpr int kHeads8 = kHeads8Value;  // heads of a group, in eights
  static constexpr bool kLarge = kLargeValue;
};

template <typename T, int D, int kHeads8, typename Visit>
void dispatch_memory(const DeviceLimits& limits, const Visit& visit) {
  const bool large = limits.shared_bytes_per_sm >= kLargeSharedBytes;
  if constexpr (is_compiled<true>()) {
    if (large) return visit(Instance<T, D, kHeads8, true>());
  }
  if constexpr (is_compiled<false>()) {
    if (!large) return visit(Instance<T, D, kHeads8, false>());
  }
  fail<RuntimeError>("CUDA: this build has no kernels for a GPU with {} bytes of shared memory",
                     limits.shared_bytes_per_sm);
}

template <typename T, int D, typename Visit>
void dispatch_group(const DeviceStep& step, const DeviceLimits& limits, const Visit& visit) {
  if (step.group() <= 8) return dispatch_memory<T, D, 1>(limits, visit);
  dispatch_memory<T, D, 2>(limits, visit);
}

template <typename T, typename Visit>
void dispatch_dim(const DeviceStep& step, const DeviceLimits& limits, const Visit& visit) {
  if (step.head_dim <= 64) return dispatch_group<T, 64>(step, limits, visit);
  if (step.head_dim <= 128) return dispatch_group<T, 128>(step, limits, visit);
  dispatch_group<T, 256>(step, limits, visit);
}

/// Calls `visit` with the instance for a step's element type, head size, group and shared memory.
template <typename Visit>
void dispatch(const DeviceStep& step, const DeviceLimits& limits, const Visit& visit) {
  if (step.type == ElementType::kBfloat16) return dispatch_dim<__nv_bfloat16>(step, limits, visit);
  dispatch_dim<__half>(step, limits, visit);
}

/// The grid of a split's kernels: one dimension each for a team's CTAs, KV heads and sequences, or
/// one for all CTAs.
inline dim3 grid_of(const TeamSplit& split) {
  if (split.ctas_per_team == 0) return dim3(static_cast<unsigned>(split.ctas));
  return dim3(static_cast<unsigned>(split.ctas_per_team), static_cast<unsigned>(split.kv_heads),
              static_cast<unsigned>(split.batch));
}

/// Launches `kernel`; `cooperative` guarantees that all its CTAs run at once.
template <typename Arguments>
void launch(void (*kernel)(Arguments), const Arguments& arguments, dim3 grid, int threads,
            int shared_bytes, CUstream_st* stream, bool cooperative = false) {
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "shared memory of a kernel");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = cooperative ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments), "kernel launch");
}

}  // namespace kvsim
