#pragma once

#include "core/device_limits.h"
#include "kernels/santapp/settings.h"
#include "kernels/santapp/sizes.h"
#include "kernels/shape.h"
#include "kernels/split_plan.h"

namespace kvsim::santapp {

/// Prompt tokens of a sequence, whose keys are in teams; the others are the suffix.
std::int64_t prompt_of(const Shape& shape, std::int64_t context);

/// How the kernel deals the teams of a step out over its CTAs (kernel.cu, arguments()).
struct TeamPlan {
  TeamPlan(const Shape& shape, const Settings& settings, const DeviceLimits& limits);

  CtaSizes cta{};
  SplitPlan split;  // units of 16 teams
  TileSplit tiles;
  int list = 0;            // candidates that a tile names of a head
  double prompt_rows = 0;  // of all sequences
  double suffix_rows = 0;
  double heads_of_warp = 1;  // whose noise and candidates one warp has, at most
  bool stash_on_chip = true;

  double ctas() const { return split.launch.ctas; }
  double units_of_warp() const {
    return static_cast<double>(tiles.tiles_per_cta) * kTileUnits / cta.warps;
  }
  double threads() const { return 32.0 * cta.warps; }
  /// Of one head, by all tiles.
  double candidates() const { return static_cast<double>(tiles.tiles() * list); }
};

}  // namespace kvsim::santapp
