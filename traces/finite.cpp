#include "traces/finite.h"

#include <algorithm>

namespace kvsim {
namespace {

/// True if any of `count` elements has all exponent bits set. Written as a maximum, which compilers
/// turn into vector code of any width.
template <typename Bits>
bool any_special(const Bits* bits, std::int64_t count, Bits exponent) {
  Bits most = 0;
#pragma omp simd reduction(max : most)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto found = static_cast<Bits>(bits[i] & exponent);
    most = found > most ? found : most;
  }
  return most == exponent;
}

template <typename Bits>
std::optional<std::int64_t> find_special(std::span<const std::byte> data, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  const auto* bits = reinterpret_cast<const Bits*>(data.data());
  const auto count = static_cast<std::int64_t>(data.size() / sizeof(Bits));
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    if (!any_special(bits + begin, end - begin, exponent)) continue;
    const Bits* found = std::find_if(bits + begin, bits + end, [exponent](Bits value) {
      return static_cast<Bits>(value & exponent) == exponent;
    });
    return found - bits;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> first_non_finite(std::span<const std::byte> data, ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return find_special<std::uint16_t>(data, 0x7c00u);
    case ElementType::kBfloat16:
      return find_special<std::uint16_t>(data, 0x7f80u);
    case ElementType::kFloat32:
      break;
  }
  return find_special<std::uint32_t>(data, 0x7f800000u);
}

}  // namespace kvsim
