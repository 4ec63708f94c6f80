#include "plots/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>

namespace kvsim {
namespace {

constexpr std::string_view kEllipsis = "\u2026";
// Prefixes of units, each 1000 times the one before.
constexpr std::array<std::string_view, 7> kPrefixes{"p", "n", "\u00b5", "m", "", "k", "M"};

/// Advance in em of the widest letter of a group, DejaVu Sans.
double advance(char letter) {
  constexpr std::string_view kNarrow = "fijlrtI.,:;'|!()[]-/ ";
  constexpr std::string_view kWide = "mwMW%@&=+_~<>";
  if (kNarrow.find(letter) != std::string_view::npos) return 0.40;
  if (kWide.find(letter) != std::string_view::npos) return 0.90;
  return letter >= 'A' && letter <= 'Z' ? 0.75 : 0.63;
}

bool starts_code_point(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

/// Neighbours that wanted to be closer than the gap: they share one mean place.
struct Block {
  std::size_t count = 0;
  double sum = 0;  // of the wanted places, each less its offset in the block

  double start() const { return sum / static_cast<double>(count); }
};

}  // namespace

double text_width(const std::string& text, double size, bool bold) {
  double em = 0;
  for (const char letter : text) em += starts_code_point(letter) ? advance(letter) : 0;
  return em * size * (bold ? 1.12 : 1);
}

std::string fit_text(const std::string& text, double size, double width, bool bold) {
  if (text_width(text, size, bold) <= width) return text;
  std::string cut = text;
  while (!cut.empty()) {
    while (!starts_code_point(cut.back())) cut.pop_back();
    cut.pop_back();
    const std::string shortened = cut + std::string(kEllipsis);
    if (text_width(shortened, size, bold) <= width) return shortened;
  }
  return cut;
}

std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high) {
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  std::vector<Block> blocks;
  const auto end_of = [&](const Block& block) {
    return block.start() + gap * static_cast<double>(block.count);
  };
  for (const std::size_t index : order) {
    blocks.push_back({1, wanted[index]});
    while (blocks.size() > 1 && end_of(blocks[blocks.size() - 2]) > blocks.back().start()) {
      const Block last = blocks.back();
      blocks.pop_back();
      Block& before = blocks.back();
      const double offset = gap * static_cast<double>(before.count * last.count);
      before = {before.count + last.count, before.sum + last.sum - offset};
    }
  }
  std::vector<double> places;
  for (const Block& block : blocks) {
    for (std::size_t i = 0; i < block.count; ++i) {
      places.push_back(block.start() + gap * static_cast<double>(i));
    }
  }
  // Push the crowd back inside, first from the top, then from the bottom.
  double limit = low;
  for (double& place : places) {
    place = std::max(place, limit);
    limit = place + gap;
  }
  limit = high;
  for (std::size_t i = places.size(); i-- > 0;) {
    places[i] = std::min(places[i], limit);
    limit = places[i] - gap;
  }
  std::vector<double> result(wanted.size());
  for (std::size_t i = 0; i < order.size(); ++i) result[order[i]] = places[i];
  return result;
}

Unit readable_unit(double largest, const std::string& base) {
  std::size_t index = 0;
  std::string unit = base;
  for (std::size_t i = 0; i < kPrefixes.size(); ++i) {
    if (kPrefixes[i].empty() || !base.starts_with(kPrefixes[i])) continue;
    index = i;
    unit = base.substr(kPrefixes[i].size());
    break;
  }
  double factor = 1;
  while (largest * factor >= 1000 && index + 1 < kPrefixes.size()) {
    factor /= 1000;
    ++index;
  }
  while (largest > 0 && largest * factor < 1 && index > 0) {
    factor *= 1000;
    --index;
  }
  return {factor, std::string(kPrefixes[index]) + unit};
}

std::string number_label(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.1e}", value);
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 1) return fmt::format("{:.2f}", value);
  return size == 0 ? "0" : fmt::format("{:#.3g}", value);
}

std::string grouped_integer(double value) {
  const std::string digits = fmt::format("{:.0f}", value);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

}  // namespace kvsim
