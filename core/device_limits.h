#pragma once

#include <cstdint>

namespace kvsim {

/// What an implementation needs to know of a device to plan its launches. Filled from a GPU preset,
/// or from the device itself when there is one.
struct DeviceLimits {
  int sms = 1;
  std::int64_t shared_bytes_per_sm = 0;
  std::int64_t l2_bytes = 0;
  int threads_per_sm = 1024;
};

}  // namespace kvsim
