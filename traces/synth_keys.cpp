#include "traces/synth_keys.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "traces/gaussian.h"

namespace kvsim::synth {
namespace {

constexpr std::int64_t kTile = 1024;  // tokens made at a time
constexpr std::int64_t kKnot = 16;    // tokens between the knots of the smooth part

/// Numbers per row in a stream: rows start at a block of four.
std::int64_t padded(int dim) { return (dim + 3) / 4 * 4; }

std::vector<float> gaussian_rows(const RandomStream& stream, std::int64_t begin, std::int64_t end,
                                 int dim) {
  std::vector<float> numbers(static_cast<std::size_t>((end - begin) * padded(dim)));
  fill_gaussian(stream, begin * padded(dim), numbers);
  return numbers;
}

/// Adds the smooth part: a rotation from one knot to the next keeps the variance at 1 everywhere.
void blend_neighbours(const SynthSpec& spec, const RandomStream& stream, std::int64_t begin,
                      std::int64_t end, std::vector<float>& rows) {
  constexpr double kHalfPi = 1.57079632679489661923;
  const std::int64_t stride = padded(spec.head_dim);
  const std::int64_t first_knot = begin / kKnot;
  const std::vector<float> knots =
      gaussian_rows(stream, first_knot, (end - 1) / kKnot + 2, spec.head_dim);
  const double own = std::sqrt(1 - spec.key_correlation);
  const double shared = std::sqrt(spec.key_correlation);
  for (std::int64_t token = begin; token < end; ++token) {
    const double angle = kHalfPi * static_cast<double>(token % kKnot) / kKnot;
    const auto own_factor = static_cast<float>(own);
    const auto left = static_cast<float>(shared * std::cos(angle));
    const auto right = static_cast<float>(shared * std::sin(angle));
    float* row = rows.data() + (token - begin) * stride;
    const float* knot = knots.data() + (token / kKnot - first_knot) * stride;
    for (std::int64_t j = 0; j < stride; ++j) {
      row[j] = own_factor * row[j] + (left * knot[j] + right * knot[j + stride]);
    }
  }
}

/// Replaces the components along the two directions by what marks the token.
void set_directions(const SynthSpec& spec, const Directions& directions, std::int64_t token,
                    float* row) {
  double along_sink = 0;
  double along_recency = 0;
  for (std::size_t j = 0; j < directions.sink.size(); ++j) {
    along_sink = std::fma(row[j], directions.sink[j], along_sink);
    along_recency = std::fma(row[j], directions.recency[j], along_recency);
  }
  const double length = direction_length(spec);
  const bool is_sink = spec.sink_mass > 0 && token < spec.sink_tokens;
  const double sink = (is_sink ? length : 0) - along_sink;
  const double recency = length * tail_feature(spec, token) - along_recency;
  for (std::size_t j = 0; j < directions.sink.size(); ++j) {
    row[j] =
        static_cast<float>(row[j] + sink * directions.sink[j] + recency * directions.recency[j]);
  }
}

void store_rows(const std::vector<float>& rows, int dim, ElementType type, std::byte* out) {
  const std::int64_t stride = padded(dim);
  const auto count = static_cast<std::int64_t>(rows.size()) / stride;
  for (std::int64_t row = 0; row < count; ++row) {
    store_values(rows.data() + row * stride, dim, type, out + row * dim * bytes_of(type));
  }
}

}  // namespace

RandomStream stream_of(const SynthSpec& spec, int layer, int kv_head, Stream stream) {
  RandomStream result;
  result.seed = spec.seed;
  result.purpose = Purpose::kSynthetic;
  result.layer = static_cast<std::uint32_t>(layer);
  result.head = static_cast<std::uint32_t>(kv_head);
  result.sequence = static_cast<std::uint32_t>(stream);
  return result;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void add_scaled(std::vector<double>& a, double factor, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
}

std::vector<double> random_unit(const RandomStream& stream, std::int64_t index, int dim,
                                const std::vector<std::vector<double>>& others) {
  const std::vector<float> numbers = gaussian_rows(stream, index, index + 1, dim);
  std::vector<double> vector(numbers.begin(), numbers.begin() + dim);
  const bool room = static_cast<int>(others.size()) < dim;
  for (int pass = 0; pass < 2 && room; ++pass) {  // twice, for orthogonality to the last bit
    for (const std::vector<double>& other : others) add_scaled(vector, -dot(vector, other), other);
  }
  const double norm = std::sqrt(dot(vector, vector));
  for (double& value : vector) value /= norm;
  return vector;
}

Directions make_directions(const SynthSpec& spec, int layer, int kv_head) {
  const RandomStream stream = stream_of(spec, layer, kv_head, Stream::kDirections);
  Directions directions;
  directions.sink = random_unit(stream, 0, spec.head_dim, {});
  directions.recency = random_unit(stream, 1, spec.head_dim, {directions.sink});
  return directions;
}

double direction_length(const SynthSpec& spec) { return 2 * std::sqrt(spec.head_dim); }

std::int64_t tail_begin(const SynthSpec& spec) {
  if (spec.recency <= 0) return spec.prompt_tokens;
  return spec.prompt_tokens + 1 - spec.probe_queries - spec.window_tokens;
}

double tail_feature(const SynthSpec& spec, std::int64_t token) {
  const std::int64_t begin = tail_begin(spec);
  if (spec.recency <= 0 || token < begin) return 0;
  const std::int64_t tail = spec.prompt_tokens + spec.decode_steps - begin;
  return static_cast<double>(token - begin + 1) / static_cast<double>(tail);
}

std::vector<std::byte> make_keys(const SynthSpec& spec, int layer, int kv_head,
                                 const Directions& directions) {
  const std::int64_t tokens = spec.prompt_tokens + spec.decode_steps;
  const std::int64_t row_bytes = spec.head_dim * bytes_of(spec.type);
  std::vector<std::byte> keys(static_cast<std::size_t>(tokens * row_bytes));
  const RandomStream own = stream_of(spec, layer, kv_head, Stream::kKeys);
  const RandomStream knots = stream_of(spec, layer, kv_head, Stream::kKnots);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t begin = 0; begin < tokens; begin += kTile) {
    const std::int64_t end = std::min(begin + kTile, tokens);
    std::vector<float> rows = gaussian_rows(own, begin, end, spec.head_dim);
    if (spec.key_correlation > 0) blend_neighbours(spec, knots, begin, end, rows);
    for (std::int64_t token = begin; token < end; ++token) {
      set_directions(spec, directions, token,
                     rows.data() + (token - begin) * padded(spec.head_dim));
    }
    store_rows(rows, spec.head_dim, spec.type, keys.data() + begin * row_bytes);
  }
  return keys;
}

std::vector<std::byte> make_values(const SynthSpec& spec, int layer, int kv_head,
                                   std::int64_t begin, std::int64_t end) {
  const RandomStream stream = stream_of(spec, layer, kv_head, Stream::kValues);
  const std::int64_t row_bytes = spec.v_head_dim * bytes_of(spec.type);
  std::vector<std::byte> values(static_cast<std::size_t>((end - begin) * row_bytes));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t first = begin; first < end; first += kTile) {
    const std::int64_t last = std::min(first + kTile, end);
    store_rows(gaussian_rows(stream, first, last, spec.v_head_dim), spec.v_head_dim, spec.type,
               values.data() + (first - begin) * row_bytes);
  }
  return values;
}

}  // namespace kvsim::synth
