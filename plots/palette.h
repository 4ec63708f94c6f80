#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvsim {

/// 0xRRGGBB.
using Colour = std::uint32_t;

inline constexpr Colour kInk = 0x222222;
inline constexpr Colour kFaintInk = 0x666666;
inline constexpr Colour kGrid = 0xE2E2E2;
inline constexpr Colour kWhite = 0xFFFFFF;

/// Hues that the colour-blind can tell apart (Okabe and Ito, without yellow), repeated from the
/// seventh on.
Colour hue(std::size_t index);
/// A lighter shade: 0 is the colour itself, every further one is nearer to white.
Colour shade(Colour colour, std::size_t step);
/// White or ink, whichever reads better on the colour.
Colour text_on(Colour colour);

/// A method's colour and marker (a gnuplot point type), by its place in the document. Both together
/// are unique for 56 methods.
struct Look {
  Colour colour = kInk;
  int marker = 7;
};
Look method_look(std::size_t index);

/// "#RRGGBB", or "#AARRGGBB" with 0 < transparency < 1.
std::string hex(Colour colour, double transparency = 0);

}  // namespace kvsim
