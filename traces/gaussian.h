#pragma once

#include <cstdint>
#include <span>

#include "core/philox.h"

namespace kvsim {

/// Standard normal numbers of a random stream: number i is had without the ones before it.
/// Box-Muller in float64 from the stream's words, with logarithm, sine and cosine of our own (IEEE
/// operations only), so that the bits are the same on every machine. Four numbers come from one
/// block of words.
///
/// Writes numbers [first, first + out.size()); `first` is a multiple of 4 and below 2^34.
void fill_gaussian(const RandomStream& stream, std::int64_t first, std::span<float> out);

}  // namespace kvsim
