#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/method.h"
#include "kernels/santapp/parents.h"
#include "kernels/santapp/teams.h"

namespace kvsim::santapp {

/// The name that teams are kept by: /layers/<i>/state/santapp.
inline constexpr const char* kStateName = "santapp";

/// What teams depend on besides the prompt.
struct TeamSettings {
  Grouping grouping = Grouping::kKeys;
  int parent = 16;  // keys
  int representatives = 4;
};

/// "parent=16,representatives=4,grouping=keys".
std::string to_string(const TeamSettings& settings);

/// The teams of a prompt: those kept with the trace if their settings are these, else made anew.
Teams teams_of(const CacheView& prompt, const TeamSettings& settings);
Teams make_teams(const CacheView& prompt, const TeamSettings& settings);

/// Those kept with the trace. None if there are none, or of other settings; RuntimeError if they
/// are no teams of the prompt's keys.
std::optional<Teams> stored_teams(const CacheView& prompt, const TeamSettings& settings);

/// A KV head's arrays members, starts and leaders, to be kept with the trace.
PreparedState::Arrays arrays_of(const Teams& teams);
/// What these arrays take.
std::int64_t stored_bytes(const Teams& teams);

}  // namespace kvsim::santapp
