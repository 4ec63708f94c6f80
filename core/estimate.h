#pragma once

#include <string_view>

namespace kvsim {

/// Where a number comes from; the same words are `kind` in presets and `source` in JSON.
enum class Source { kSpec, kPublished, kMeasured, kCalibrated, kDerived, kAssumed };

std::string_view to_string(Source source);
/// Throws RuntimeError for an unknown word.
Source parse_source(std::string_view word);

/// A number with its 90 % interval. The unit stands in the name of the variable that holds it.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
  Source source = Source::kDerived;
};

/// A number known exactly.
constexpr Estimate exactly(double value, Source source = Source::kDerived) {
  return {value, value, value, source};
}

/// Terms of a sum share parameters, so their errors add linearly, not in quadrature. The source of
/// a result is the weakest of its inputs (kAssumed is weaker than kDerived is weaker than
/// kMeasured).
Estimate operator+(const Estimate& a, const Estimate& b);
Estimate& operator+=(Estimate& a, const Estimate& b);
/// Product and quotient of positive quantities: the bounds multiply.
Estimate operator*(const Estimate& a, const Estimate& b);
Estimate operator*(const Estimate& a, double factor);
Estimate operator/(const Estimate& a, const Estimate& b);
/// The larger of two, bound by bound.
Estimate max(const Estimate& a, const Estimate& b);

}  // namespace kvsim
