#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/device/kernel.h"
#include "kernels/santapp/pack.cuh"
#include "kernels/santapp/settings.h"
#include "kernels/santapp/sizes.h"

namespace kvsim::santapp {

/// What SANTA++'s kernels share: teams and their members as PackedTeams, and what they dump.
class TeamsKernel : public Kernel {
 public:
  explicit TeamsKernel(const Settings& settings) : settings_(settings) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits&) const override {
    if (settings_.guided > 0) return "guided draws, which have no kernel";
    return step_refusal(step);
  }

  bool wants_states() const override { return true; }

  std::int64_t bound_stride(const DeviceStep& step) const override {
    return 2 * table(step, nullptr).teams;
  }

  std::size_t prepared_bytes(const DeviceStep& step) const override {
    const PackedTeams packed = table(step, nullptr);
    return static_cast<std::size_t>(packed.group_bytes() * step.batch * step.kv_heads);
  }

  void upload_states(const DeviceStep& step, std::span<const State* const> states,
                     std::byte* prepared, CUstream_st* stream) const override {
    upload_teams(step, states, table(step, prepared), stream);
  }

 protected:
  PackedTeams table(const DeviceStep& step, std::byte* prepared) const {
    std::int64_t rows = step.prepared_rows;
    for (int s = 0; s < step.batch && step.prepared_rows == 0; ++s) {
      rows = std::max(rows, prompt_rows(step, s));
    }
    const std::int64_t teams =
        most_teams(rows, settings_.teams.parent, settings_.teams.representatives);
    return {prepared, rows,
            (teams + device::kUnitTokens - 1) / device::kUnitTokens * device::kUnitTokens,
            step.head_dim};
  }
  PackedTeams table(const DeviceStep& step) const {
    return table(step, const_cast<std::byte*>(step.prepared));
  }

  /// The rows of a step's table that route.
  static KvTensor routes_of(const DeviceStep& step, const PackedTeams& table) {
    const std::int64_t group = table.group_bytes() / 2;
    return {step.prepared == nullptr ? nullptr : table.routes<std::byte>(0), group * step.kv_heads,
            group, step.head_dim};
  }

  Settings settings_;
};

/// implementation=published.
std::unique_ptr<Kernel> make_published(const Settings& settings);

}  // namespace kvsim::santapp
