#pragma once

#include <optional>

#include "core/device_limits.h"
#include "kernels/shape.h"
#include "kernels/statistics.h"
#include "kernels/work.h"

namespace kvsim {

/// What makes a method's state from a layer's prompt, once, on a GPU. Rounds that depend on the
/// data lie between two bounds; the operations are those of `usual`.
struct Preparation {
  Work least;
  Work usual;
  Work most;
};

/// How a method is run: its launches and traffic. One method may have several (`ours`,
/// `published`).
class Implementation {
 public:
  virtual ~Implementation() = default;

  /// The stages, accesses and operations of one layer and step, in closed form: no heap, so a sweep
  /// builds millions. `statistics` are sums over the whole batch, as a replay counts them.
  virtual Work work(const Shape& shape, const Statistics& statistics,
                    const DeviceLimits& limits) const = 0;

  /// For prompts of `shape`'s contexts. None: there is no state, or no model of how it is made.
  virtual std::optional<Preparation> preparation(const Shape& /*shape*/,
                                                 const DeviceLimits& /*limits*/) const {
    return std::nullopt;
  }
};

}  // namespace kvsim
