#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace kvsim {

/// What a synthetic trace shall look like. The defaults resemble the deeper layers of a small real
/// model. Zero for a mass means: add nothing, the tokens get what they would get by chance.
struct SynthSpec {
  std::int64_t prompt_tokens = 32768;
  std::int64_t decode_steps = 16;
  std::int64_t probe_queries = 0;  // of the last prompt tokens, drawn as those of decode steps
  int layers = 1;
  int q_heads = 32;
  int kv_heads = 8;  // 1 with `latent`
  int head_dim = 128;
  int v_head_dim = 128;
  ElementType type = ElementType::kBfloat16;
  bool latent = false;  // one dataset kv; V is its first v_head_dim columns
  std::uint64_t seed = 0;

  double sink_mass = 0.35;  // softmax mass on the first sink_tokens
  std::int64_t sink_tokens = 4;
  double recency = 0.45;  // softmax mass on the last window_tokens
  std::int64_t window_tokens = 256;
  double entropy_low_nats = 2;  // heads are spread evenly from low to high
  double entropy_high_nats = 5;
  double group_correlation = 0.6;  // mean cosine of the queries of two heads of a group
  double drift = 0.15;             // 1 - cosine of a head's consecutive queries
  double key_correlation = 0.5;    // share of a key's variance that is shared with its neighbours
};

struct SynthQuantity {
  std::string name;             // as the field of SynthSpec
  std::optional<double> asked;  // none if nothing was asked
  double reached = 0;           // measured on the stored values, mean over layers
};

struct SynthResult {
  TraceInfo info;
  std::vector<SynthQuantity> quantities;
  std::vector<std::string> notes;  // what could not be reached, and why
};

struct SynthOptions {
  bool force = false;
  bool compress = false;
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // in KV heads; may be empty
};

/// Writes a synthetic trace. Keys are Gaussian, smooth along the sequence by `key_correlation`,
/// with one direction of their own for sinks and one that rises over the last tokens; queries are
/// random walks whose length and share of the two directions are found by bisection, so that masses
/// and entropy of every head and step are what was asked; values are independent Gaussians. Memory
/// is bounded by one KV head's keys. The same spec gives the same bytes, whatever the threads.
/// Throws UsageError for a spec that makes no sense; a combination that cannot be reached is
/// written as near as possible and noted in the result.
SynthResult synthesize(const SynthSpec& spec, const std::string& path,
                       const SynthOptions& options = {});

}  // namespace kvsim
