#include "traces/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvsim {
namespace {

/// True if any of `count` elements has an exponent of `least` or more. Written as a maximum, which
/// compilers turn into vector code of any width.
template <typename Bits>
bool any_special(const Bits* bits, std::int64_t count, Bits exponent, Bits least) {
  Bits most = 0;
#pragma omp simd reduction(max : most)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto found = static_cast<Bits>(bits[i] & exponent);
    most = found > most ? found : most;
  }
  return most >= least;
}

template <typename Bits>
std::optional<std::int64_t> find_special(std::span<const std::byte> data, Bits exponent,
                                         Bits least) {
  constexpr std::int64_t kBlock = 4096;
  const auto* bits = reinterpret_cast<const Bits*>(data.data());
  const auto count = static_cast<std::int64_t>(data.size() / sizeof(Bits));
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    if (!any_special(bits + begin, end - begin, exponent, least)) continue;
    const Bits* found = std::find_if(bits + begin, bits + end, [=](Bits value) {
      return static_cast<Bits>(value & exponent) >= least;
    });
    return found - bits;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> first_unusable(std::span<const std::byte> data, ElementType type) {
  constexpr std::uint32_t kLeast = 127 + kMostExponent;
  switch (type) {
    case ElementType::kFloat16:  // whatever is finite is small enough
      return find_special<std::uint16_t>(data, 0x7c00u, 0x7c00u);
    case ElementType::kBfloat16:
      return find_special<std::uint16_t>(data, 0x7f80u, kLeast << 7);
    case ElementType::kFloat32:
      break;
  }
  return find_special<std::uint32_t>(data, 0x7f800000u, kLeast << 23);
}

std::string unusable_text(std::span<const std::byte> data, ElementType type, std::int64_t index) {
  const auto bytes = static_cast<std::size_t>(bytes_of(type));
  const RowsView view{data.data() + static_cast<std::size_t>(index) * bytes, type, 1, 1, 1};
  float value = 0;
  load_rows(view, 0, 1, 1, &value);
  if (!std::isfinite(value)) return "is not finite";
  return fmt::format("is {:.3g}, expected a magnitude below 2^{}", value, kMostExponent);
}

}  // namespace kvsim
