#include "tests/emulator/device.h"

#include <algorithm>
#include <utility>

#include "kernels/device/geometry.h"
#include "kernels/measure/gpu.h"

namespace kvsim::emulator {
namespace {

std::uint64_t count_of(dim3 extent) { return std::uint64_t{extent.x} * extent.y * extent.z; }

/// CTAs that the device can run at once.
std::uint64_t resident(const LaunchShape& shape, const DeviceLimits& limits) {
  const std::uint64_t by_threads =
      static_cast<std::uint64_t>(limits.threads_per_sm) / count_of(shape.block);
  const std::uint64_t by_memory = static_cast<std::uint64_t>(limits.shared_bytes_per_sm) /
                                  (shape.shared_bytes + kSystemSharedBytes);
  return std::min(by_threads, by_memory) * static_cast<std::uint64_t>(limits.sms);
}

/// Programs that ask for the GPU of this machine get this one.
const bool offered = [] {
  measure_backend().info = [] {
    GpuInfo info;
    info.name = "emulated";
    info.limits = Device::instance().limits;
    return info;
  };
  return true;
}();

}  // namespace

Device& Device::instance() {
  static Device device;
  return device;
}

LaunchError launch(const LaunchShape& shape, const void* function, std::function<void()> kernel) {
  Device& device = Device::instance();
  const std::uint64_t threads = count_of(shape.block);
  const auto asked = device.shared_bytes_of.find(function);
  const int most =
      asked != device.shared_bytes_of.end() ? asked->second : Device::kUsualSharedBytes;
  if (count_of(shape.grid) == 0 || threads == 0 || threads > Device::kMostThreads ||
      shape.shared_bytes > static_cast<std::size_t>(std::max(most, Device::kUsualSharedBytes))) {
    return LaunchError::kConfiguration;
  }
  if (shape.cooperative && count_of(shape.grid) > resident(shape, device.limits)) {
    return LaunchError::kTooLarge;
  }
  Scheduler(shape, std::move(kernel), device.seed++).run();
  return LaunchError::kNone;
}

}  // namespace kvsim::emulator
