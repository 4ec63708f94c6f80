#include "plots/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvsim {
namespace {

constexpr std::array<Colour, 7> kHues{0x0072B2, 0xE69F00, 0x009E73, 0xD55E00,
                                      0xCC79A7, 0x56B4E9, 0x7F7F7F};
constexpr std::array<Colour, 7> kMethodColours{0x000000, 0x0072B2, 0xD55E00, 0x009E73,
                                               0xCC79A7, 0xE69F00, 0x56B4E9};
// Circle, square, triangle, diamond, triangle down, pentagon, then hollow ones.
constexpr std::array<int, 8> kMarkers{7, 5, 9, 13, 11, 15, 6, 4};
constexpr std::array<double, 5> kShades{0, 0.38, 0.62, 0.78, 0.88};

double channel(Colour colour, int shift) { return (colour >> shift) & 0xFF; }

}  // namespace

Colour hue(std::size_t index) { return kHues[index % kHues.size()]; }

Colour shade(Colour colour, std::size_t step) {
  const double white = kShades[std::min(step, kShades.size() - 1)];
  Colour result = 0;
  for (const int shift : {16, 8, 0}) {
    const double mixed = channel(colour, shift) * (1 - white) + 255 * white;
    result |= static_cast<Colour>(std::lround(mixed)) << shift;
  }
  return result;
}

Colour text_on(Colour colour) {
  const double luma =
      0.299 * channel(colour, 16) + 0.587 * channel(colour, 8) + 0.114 * channel(colour, 0);
  return luma < 140 ? kWhite : kInk;
}

Look method_look(std::size_t index) {
  return {kMethodColours[index % kMethodColours.size()], kMarkers[index % kMarkers.size()]};
}

std::string hex(Colour colour, double transparency) {
  const auto alpha = static_cast<unsigned>(std::lround(transparency * 255));
  if (alpha == 0) return fmt::format("#{:06X}", colour);
  return fmt::format("#{:02X}{:06X}", alpha, colour);
}

}  // namespace kvsim
