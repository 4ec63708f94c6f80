#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "traces/rows_view.h"

namespace kvsim {

/// Index of the first element that is NaN or infinite, none if all are finite. Runs at the speed of
/// memory: it looks at exponents only and in blocks.
std::optional<std::int64_t> first_non_finite(std::span<const std::byte> data, ElementType type);

}  // namespace kvsim
