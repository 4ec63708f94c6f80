#include "core/estimate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr std::array<std::pair<Source, std::string_view>, 6> kWords{{
    {Source::kSpec, "spec"},
    {Source::kPublished, "published"},
    {Source::kMeasured, "measured"},
    {Source::kCalibrated, "calibrated"},
    {Source::kDerived, "derived"},
    {Source::kAssumed, "assumed"},
}};

Source weaker(Source a, Source b) { return std::max(a, b); }

}  // namespace

std::string_view to_string(Source source) {
  return kWords[static_cast<std::size_t>(source)].second;
}

Source parse_source(std::string_view word) {
  for (const auto& [source, name] : kWords) {
    if (name == word) return source;
  }
  fail<RuntimeError>(
      "unknown kind '{}', expected spec, published, measured, calibrated, derived or assumed",
      word);
}

Estimate operator+(const Estimate& a, const Estimate& b) {
  return {a.value + b.value, a.low + b.low, a.high + b.high, weaker(a.source, b.source)};
}

Estimate& operator+=(Estimate& a, const Estimate& b) { return a = a + b; }

Estimate operator*(const Estimate& a, const Estimate& b) {
  return {a.value * b.value, a.low * b.low, a.high * b.high, weaker(a.source, b.source)};
}

Estimate operator*(const Estimate& a, double factor) {
  return {a.value * factor, a.low * factor, a.high * factor, a.source};
}

Estimate operator/(const Estimate& a, const Estimate& b) {
  return {a.value / b.value, a.low / b.high, a.high / b.low, weaker(a.source, b.source)};
}

Estimate max(const Estimate& a, const Estimate& b) {
  return {std::max(a.value, b.value), std::max(a.low, b.low), std::max(a.high, b.high),
          a.value >= b.value ? a.source : b.source};
}

}  // namespace kvsim
