#pragma once

#include <cstdint>
#include <vector>

#include "core/philox.h"
#include "traces/rows_view.h"
#include "traces/synth.h"

namespace kvsim::synth {

/// Independent streams of one KV head.
enum class Stream : std::uint32_t { kKeys, kKnots, kValues, kDirections, kFrames, kOrder, kTheory };
RandomStream stream_of(const SynthSpec& spec, int layer, int kv_head, Stream stream);

/// Unit vectors, orthogonal to each other, that mark sinks and recent tokens in the keys of a head.
struct Directions {
  std::vector<double> sink;
  std::vector<double> recency;
};
Directions make_directions(const SynthSpec& spec, int layer, int kv_head);

/// How strongly keys carry their direction: logits shall not need long queries for it.
double direction_length(const SynthSpec& spec);
/// The first token whose key rises along the recency direction; the first query's window begins
/// there.
std::int64_t tail_begin(const SynthSpec& spec);
/// Its place in the rise, in (0, 1]; 0 for all tokens if no recency is asked for.
double tail_feature(const SynthSpec& spec, std::int64_t token);

/// All keys of a KV head, [tokens, head_dim], rounded to the stored type. Independent of threads.
std::vector<std::byte> make_keys(const SynthSpec& spec, int layer, int kv_head,
                                 const Directions& directions);
/// Values of tokens [begin, end), [end - begin, v_head_dim], rounded to the stored type.
std::vector<std::byte> make_values(const SynthSpec& spec, int layer, int kv_head,
                                   std::int64_t begin, std::int64_t end);

double dot(const std::vector<double>& a, const std::vector<double>& b);
/// a += factor * b.
void add_scaled(std::vector<double>& a, double factor, const std::vector<double>& b);
/// A random unit vector orthogonal to `others` (which are orthonormal). With `others` filling the
/// space it is just a random unit vector.
std::vector<double> random_unit(const RandomStream& stream, std::int64_t index, int dim,
                                const std::vector<std::vector<double>>& others);

}  // namespace kvsim::synth
