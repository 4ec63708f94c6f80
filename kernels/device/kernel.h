#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/device_limits.h"
#include "core/registry.h"
#include "kernels/device/step.h"
#include "kernels/method.h"
#include "kernels/parameters.h"

struct CUstream_st;

namespace kvsim {

/// A method as CUDA kernels. Immutable; what a launch needs to remember lies in the workspace.
class Kernel {
 public:
  virtual ~Kernel() = default;

  /// Why this kernel cannot run the step (head size, group, layout …); empty if it can.
  virtual std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const = 0;
  /// Whether steps need a copy of K feature by feature.
  virtual bool wants_features() const { return false; }
  /// Tokens of the blocks that the method screens by DeviceStep::thresholds; 0: it screens none.
  virtual int screened_block() const { return 0; }
  /// What a launch dumps of each head beside scores and counts, DeviceStep::bounds; 0: nothing.
  virtual std::int64_t bound_stride(const DeviceStep&) const { return 0; }
  /// Device memory for what the method keeps beside the cache of a step; 0: nothing.
  virtual std::size_t prepared_bytes(const DeviceStep&) const { return 0; }
  /// Makes it for the last `new_rows` rows of every sequence: all of them, or those since the last
  /// call.
  virtual void prepare(const DeviceStep&, std::int64_t /*new_rows*/, std::byte* /*prepared*/,
                       CUstream_st*) const {}
  /// Whether what is kept comes from the method's own states: then `upload_states` makes it, from
  /// those of all (sequence, KV head), once after the prompt, and `prepare` does nothing.
  virtual bool wants_states() const { return false; }
  virtual void upload_states(const DeviceStep&, std::span<const State* const> /*states*/,
                             std::byte* /*prepared*/, CUstream_st*) const {}
  /// Device memory for exchanges and partial results. The caller zeroes it once; every launch
  /// leaves it as the next one of equal contexts, heads and limits needs it, others want it zeroed
  /// again. One workspace serves one launch at a time.
  virtual std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const = 0;
  /// Enqueues the whole method; may be captured in a graph. Throws RuntimeError if CUDA refuses.
  virtual void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
                      CUstream_st* stream) const = 0;
};

/// By method name. Empty in a build without CUDA.
struct KernelInfo {
  std::function<std::unique_ptr<Kernel>(const Parameters&)> make;
};
Registry<KernelInfo>& kernel_registry();

}  // namespace kvsim

/// Registers a kernel from the file it is defined in.
#define KVSIM_REGISTER_KERNEL(name, ...)                                         \
  [[maybe_unused]] static const bool KVSIM_CONCAT(kvsim_registered_, __LINE__) = \
      ::kvsim::kernel_registry().add(name, __VA_ARGS__)
