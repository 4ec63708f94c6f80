#pragma once

#include "core/device_limits.h"
#include "kernels/shape.h"
#include "kernels/statistics.h"
#include "kernels/work.h"

namespace kvsim {

/// How a method is run: its launches and traffic. One method may have several (`ours`,
/// `published`).
class Implementation {
 public:
  virtual ~Implementation() = default;

  /// The stages, accesses and operations of one layer and step, in closed form: no heap, so a sweep
  /// builds millions. `statistics` are sums over the whole batch, as a replay counts them.
  virtual Work work(const Shape& shape, const Statistics& statistics,
                    const DeviceLimits& limits) const = 0;
};

}  // namespace kvsim
