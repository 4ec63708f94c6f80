#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "core/device_limits.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/scheduler.h"

namespace kvsim::emulator {

/// The GPU that the CUDA runtime of this folder offers: few SMs of an H100's size.
struct Device {
  static constexpr int kMostSharedBytes = 227 * 1024;  // of a CTA
  static constexpr int kUsualSharedBytes = 48 * 1024;  // without asking for more
  static constexpr int kMostThreads = 1024;            // of a CTA

  DeviceLimits limits{
      .sms = 6, .shared_bytes_per_sm = 228 * 1024, .l2_bytes = 50 << 20, .threads_per_sm = 2048};
  GlobalMemory memory;
  std::map<const void*, int> shared_bytes_of;  // that kernels asked for
  std::uint64_t seed = 1;                      // of the next launch's schedule; each adds 1

  static Device& instance();
};

enum class LaunchError { kNone, kConfiguration, kTooLarge };

/// Runs a kernel to its end. `function` names it; `kernel` calls it with its arguments.
LaunchError launch(const LaunchShape& shape, const void* function, std::function<void()> kernel);

}  // namespace kvsim::emulator
