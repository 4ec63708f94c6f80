#include "traces/synth_queries.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "traces/gaussian.h"
#include "traces/row_products.h"

namespace kvsim::synth {
namespace {

/// Tokens of the sequence before the tail that get no direction of their own.
std::int64_t first_plain_token(const SynthSpec& spec) { return spec.sink_tokens; }

/// Index of the window's first token in the tail.
std::size_t window_begin(const SynthSpec& spec, std::int64_t context) {
  const std::int64_t begin = context - spec.window_tokens - tail_begin(spec);
  return static_cast<std::size_t>(std::max<std::int64_t>(begin, 0));
}

/// The coefficients a head would get if scores were exactly normal: known before any query is.
Coefficients expected_coefficients(const SynthSpec& spec, int layer, int kv_head,
                                   const Target& target) {
  Profile profile;
  profile.sinks.assign(static_cast<std::size_t>(spec.sink_tokens), 0.0);
  const std::int64_t begin = tail_begin(spec);
  const std::int64_t context = spec.prompt_tokens + 1;
  std::vector<float> scores(static_cast<std::size_t>(context - begin));
  fill_gaussian(stream_of(spec, layer, kv_head, Stream::kTheory), 0, scores);
  profile.tail.assign(scores.begin(), scores.end());
  for (std::int64_t token = begin; token < context; ++token) {
    profile.tail_features.push_back(tail_feature(spec, token));
  }
  profile.window_begin = window_begin(spec, context);
  profile.counts = normal_counts(static_cast<double>(begin - spec.sink_tokens));
  return calibrate(profile, target);
}

/// How far queries turn and how much the heads of a group share, solved from the expected lengths
/// of a query's three parts.
struct Geometry {
  double turn_cosine = 1;    // of the free part, between steps
  double shared_square = 0;  // share of the group's common vector in the free part, squared
};

/// Lengths of the parts of a query.
struct Parts {
  double free = 0;
  double sink = 0;
  double recency = 0;
  double norm() const { return std::sqrt(free * free + sink * sink + recency * recency); }
};

Parts parts_of(const SynthSpec& spec, const Coefficients& coefficients) {
  const double length = direction_length(spec);
  return {coefficients.tau, coefficients.sink / length, coefficients.recency / length};
}

double limited(double value, double low, const char* name, double asked,
               std::vector<std::string>& notes) {
  const double clamped = std::clamp(value, low, 1.0);
  // Rounding may leave a value a hair outside of what is possible.
  if (std::abs(clamped - value) > 1e-6) {
    const std::string note = fmt::format(
        "{} = {} cannot be reached with the sink, recency and entropy asked", name, asked);
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  }
  return clamped;
}

Geometry solve_geometry(const SynthSpec& spec, const std::vector<Parts>& heads,
                        std::vector<std::string>& notes) {
  Geometry geometry;
  double fixed = 0;
  double free = 0;
  for (const Parts& head : heads) {
    const double square = head.norm() * head.norm();
    fixed += (head.sink * head.sink + head.recency * head.recency) / square;
    free += head.free * head.free / square;
  }
  const auto count = static_cast<double>(heads.size());
  if (free > 0 && spec.decode_steps + spec.probe_queries > 1) {
    geometry.turn_cosine =
        limited(((1 - spec.drift) * count - fixed) / free, -1, "drift", spec.drift, notes);
  }
  fixed = free = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double norms = heads[i].norm() * heads[j].norm();
      fixed += (heads[i].sink * heads[j].sink + heads[i].recency * heads[j].recency) / norms;
      free += heads[i].free * heads[j].free / norms;
    }
  }
  const double pairs = count * (count - 1) / 2;
  if (free > 0) {
    geometry.shared_square = limited((spec.group_correlation * pairs - fixed) / free, 0,
                                     "group_correlation", spec.group_correlation, notes);
  }
  return geometry;
}

/// Random walks of orthonormal vectors, orthogonal to the two directions: vector 0 is the group's
/// common one, the others belong to one head each.
class Frame {
 public:
  Frame(const SynthSpec& spec, int layer, int kv_head, const Directions& directions, int group)
      : spec_(&spec),
        stream_(stream_of(spec, layer, kv_head, Stream::kFrames)),
        fixed_{directions.sink, directions.recency} {
    vectors_ = fresh(group + 1, fixed_);
  }

  /// Turns every vector by the angle of `cosine`, each into a direction of its own: to the next
  /// query, or, from the first one, back to those before it.
  void turn(double cosine, bool back) {
    stream_.step += back ? -1u : 1u;
    std::vector<std::vector<double>> others = fixed_;
    others.insert(others.end(), vectors_.begin(), vectors_.end());
    const auto targets = fresh(static_cast<int>(vectors_.size()), others);
    const double sine = std::sqrt(std::max(1 - cosine * cosine, 0.0));
    for (std::size_t i = 0; i < vectors_.size(); ++i) {
      for (double& value : vectors_[i]) value *= cosine;
      add_scaled(vectors_[i], sine, targets[i]);
    }
  }

  /// The free part of a head's query, of length 1.
  std::vector<double> unit(int head, double shared_square) const {
    std::vector<double> result(vectors_.front().size());
    add_scaled(result, std::sqrt(shared_square), vectors_.front());
    add_scaled(result, std::sqrt(1 - shared_square), vectors_[static_cast<std::size_t>(head) + 1]);
    for (const std::vector<double>& other : fixed_) {  // where the space is too small for all
      add_scaled(result, -dot(result, other), other);
    }
    const double norm = std::sqrt(dot(result, result));
    for (double& value : result) value /= norm;
    return result;
  }

 private:
  std::vector<std::vector<double>> fresh(int count, std::vector<std::vector<double>> others) const {
    std::vector<std::vector<double>> result;
    for (int i = 0; i < count; ++i) {
      result.push_back(random_unit(stream_, i, spec_->head_dim, others));
      others.push_back(result.back());
    }
    return result;
  }

  const SynthSpec* spec_;
  RandomStream stream_;
  std::vector<std::vector<double>> fixed_;
  std::vector<std::vector<double>> vectors_;
};

/// [heads, head_dim], flat.
std::vector<double> units_of(const Frame& frame, int group, double shared_square) {
  std::vector<double> units;
  for (int head = 0; head < group; ++head) {
    const std::vector<double> unit = frame.unit(head, shared_square);
    units.insert(units.end(), unit.begin(), unit.end());
  }
  return units;
}

/// Scores of all tokens a step sees with `units` ([heads, head_dim], flat).
std::vector<Profile> score_tokens(const SynthSpec& spec, const RowsView& keys, std::int64_t step,
                                  const std::vector<double>& units) {
  constexpr std::int64_t kRows = 8192;
  const auto heads = static_cast<int>(units.size()) / spec.head_dim;
  const std::int64_t context = spec.prompt_tokens + step + 1;
  const std::int64_t begin_tail = tail_begin(spec);
  std::vector<Profile> profiles(static_cast<std::size_t>(heads));
  std::vector<double> scores;
  for (std::int64_t begin = 0; begin < context; begin += kRows) {
    const RowsView rows = keys.slice(begin, std::min(begin + kRows, context));
    scores.resize(static_cast<std::size_t>(rows.rows * heads));
    row_products(rows, units, heads, scores);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      Profile& profile = profiles[i / static_cast<std::size_t>(rows.rows)];
      const std::int64_t token = begin + static_cast<std::int64_t>(i) % rows.rows;
      if (token < first_plain_token(spec)) {
        profile.sinks.push_back(scores[i]);
      } else if (token < begin_tail) {
        profile.counts[static_cast<std::size_t>(Profile::bin_of(scores[i]))] += 1;
      } else {
        profile.tail.push_back(scores[i]);
        profile.tail_features.push_back(tail_feature(spec, token));
      }
    }
  }
  for (Profile& profile : profiles) {
    profile.window_begin = window_begin(spec, context);
  }
  return profiles;
}

/// Calibrates the group's heads at one step (the prompt's queries: below 0) and stores their
/// queries. Returns how many heads miss their entropy.
int finish_step(const SynthSpec& spec, int first_head, const std::vector<Target>& targets,
                const Directions& directions, const RowsView& keys, std::int64_t step,
                const std::vector<double>& units, TraceLayer& layer) {
  const std::vector<Profile> profiles = score_tokens(spec, keys, step, units);
  int missed = 0;
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    const auto head = static_cast<std::size_t>(first_head) + i;
    const Coefficients coefficients = calibrate(profiles[i], targets[head]);
    const Parts parts = parts_of(spec, coefficients);
    const double wanted = targets[head].entropy_nats;
    missed += std::abs(coefficients.entropy_nats - wanted) > 0.02 * wanted + 0.01 ? 1 : 0;
    std::vector<float> query(static_cast<std::size_t>(spec.head_dim));
    for (std::size_t j = 0; j < query.size(); ++j) {
      const double free = units[i * query.size() + j];
      query[j] = static_cast<float>((parts.free * free + parts.sink * directions.sink[j] +
                                     parts.recency * directions.recency[j]) /
                                    layer.info.scale);
    }
    HostTensor& out = step < 0 ? *layer.probe : layer.q;
    const std::int64_t index = step < 0 ? spec.probe_queries + step : step;
    const std::int64_t row = index * spec.q_heads + static_cast<std::int64_t>(head);
    store_values(query.data(), spec.head_dim, spec.type,
                 out.data.data() + row * spec.head_dim * bytes_of(spec.type));
  }
  return missed;
}

}  // namespace

std::vector<Target> head_targets(const SynthSpec& spec, int layer) {
  std::vector<std::size_t> order(static_cast<std::size_t>(spec.q_heads));
  std::iota(order.begin(), order.end(), std::size_t{0});
  const RandomStream stream = stream_of(spec, layer, 0, Stream::kOrder);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return stream.word(static_cast<std::uint32_t>(a)) < stream.word(static_cast<std::uint32_t>(b));
  });
  std::vector<Target> targets(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const double place =
        order.size() == 1 ? 0.5 : static_cast<double>(rank) / static_cast<double>(order.size() - 1);
    const double entropy =
        spec.entropy_low_nats + place * (spec.entropy_high_nats - spec.entropy_low_nats);
    targets[order[rank]] = {entropy, spec.sink_tokens > 0 ? spec.sink_mass : 0, spec.recency};
  }
  return targets;
}

int make_queries(const SynthSpec& spec, int kv_head, const std::vector<Target>& targets,
                 const Directions& directions, const RowsView& keys, TraceLayer& layer,
                 std::vector<std::string>& notes) {
  const int group = layer.info.group();
  const int first_head = kv_head * group;
  std::vector<Parts> expected;
  for (int head = first_head; head < first_head + group; ++head) {
    expected.push_back(
        parts_of(spec, expected_coefficients(spec, layer.info.layer, kv_head,
                                             targets[static_cast<std::size_t>(head)])));
  }
  const Geometry geometry = solve_geometry(spec, expected, notes);
  const Frame first(spec, layer.info.layer, kv_head, directions, group);
  const auto probes = static_cast<std::size_t>(spec.probe_queries);
  std::vector<std::vector<double>> units(probes + static_cast<std::size_t>(spec.decode_steps));
  Frame frame = first;
  for (std::size_t i = probes; i < units.size(); ++i) {
    if (i > probes) frame.turn(geometry.turn_cosine, false);
    units[i] = units_of(frame, group, geometry.shared_square);
  }
  frame = first;
  for (std::size_t i = probes; i-- > 0;) {
    frame.turn(geometry.turn_cosine, true);
    units[i] = units_of(frame, group, geometry.shared_square);
  }
  std::vector<int> missed(units.size());
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::int64_t step = static_cast<std::int64_t>(i) - spec.probe_queries;
    missed[i] = finish_step(spec, first_head, targets, directions, keys, step, units[i], layer);
  }
  return std::accumulate(missed.begin(), missed.end(), 0);
}

}  // namespace kvsim::synth
