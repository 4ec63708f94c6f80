#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "traces/rows_view.h"

namespace kvsim {

/// Elements must be smaller than 2^40 in magnitude, so that no dot product, scaled or not, leaves
/// the range of float32. No model comes near.
inline constexpr int kMostExponent = 40;

/// Index of the first element that is NaN, infinite or too large, none if there is none. Runs at
/// the speed of memory: it looks at exponents only and in blocks.
std::optional<std::int64_t> first_unusable(std::span<const std::byte> data, ElementType type);
/// What is wrong with that element, to end a message: "is not finite".
std::string unusable_text(std::span<const std::byte> data, ElementType type, std::int64_t index);

}  // namespace kvsim
