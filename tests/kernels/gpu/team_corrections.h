#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/measure/selection.h"

namespace kvsim::testing {

/// Of a SANTA++ kernel's dump: how many ln c are not, bit for bit, those of the rule, or are of
/// teams that the rule does not draw. `states`: [batch, kv_heads].
std::int64_t different_corrections(const NamedMethod& method, const DeviceStep& step,
                                   std::span<const std::unique_ptr<State>> states,
                                   const ScreeningDump& dump);

}  // namespace kvsim::testing
