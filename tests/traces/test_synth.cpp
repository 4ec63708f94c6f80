#include <omp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/check.h"
#include "traces/statistics.h"
#include "traces/synth.h"
#include "traces/synth_calibration.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

SynthSpec small_spec() {
  SynthSpec spec;
  spec.prompt_tokens = 4096;
  spec.decode_steps = 4;
  spec.q_heads = 8;
  spec.kv_heads = 2;
  spec.head_dim = 64;
  spec.v_head_dim = 48;
  return spec;
}

/// Asked quantities must be reached within a relative (and small absolute) tolerance.
void check_reached(const SynthResult& result, double tolerance) {
  for (const SynthQuantity& quantity : result.quantities) {
    if (!quantity.asked) continue;
    INFO(quantity.name << ": asked " << *quantity.asked << ", reached " << quantity.reached);
    CHECK(std::abs(quantity.reached - *quantity.asked) <= tolerance * *quantity.asked + 0.01);
  }
}

}  // namespace

TEST_CASE("ordinary requests are reached within ten percent") {
  SynthSpec spec = small_spec();
  const int which = GENERATE(range(0, 9));
  if (which == 1) spec.type = ElementType::kFloat16;
  if (which == 2) spec.type = ElementType::kFloat32;
  if (which == 3) spec.sink_mass = 0.1, spec.recency = 0.2, spec.entropy_high_nats = 6;
  if (which == 4) spec.sink_mass = 0, spec.recency = 0, spec.entropy_low_nats = 3;
  if (which == 5) spec.drift = 0.6, spec.group_correlation = 0.2;
  if (which == 6) spec.drift = 0.02, spec.group_correlation = 0.9, spec.layers = 2;
  if (which == 7) {
    spec.key_correlation = 0;
    spec.sink_tokens = 1;
    spec.window_tokens = 64;
    spec.entropy_high_nats = 4;  // few tokens cannot share more
  }
  if (which == 8) spec.prompt_tokens = 20000, spec.entropy_high_nats = 6, spec.recency = 0.3;
  const TemporaryFolder folder;
  const SynthResult result = synthesize(spec, folder.file("s.h5"));
  INFO("case " << which);
  check_reached(result, 0.1);
  CHECK(result.notes.empty());
  const TraceReader reader(folder.file("s.h5"));
  CHECK(reader.info().synthetic);
  CHECK(reader.info().model == "synthetic");
  CHECK_THAT(reader.info().source, ContainsSubstring(fmt::format("drift {}", spec.drift)));
  CHECK(reader.info().layers.size() == static_cast<std::size_t>(spec.layers));
  CHECK(reader.info().layers[0].kv_type == spec.type);
  CHECK(reader.read_layer(0).v.shape[2] == 48);
}

TEST_CASE("what synthesize says it reached is what the file holds") {
  const TemporaryFolder folder;
  SynthSpec spec = small_spec();
  const SynthResult result = synthesize(spec, folder.file("s.h5"));
  const LayerStatistics measured = attention_statistics(
      TraceReader(folder.file("s.h5")).read_layer(0), spec.prompt_tokens, {4, 256, 0});
  for (const SynthQuantity& quantity : result.quantities) {
    if (quantity.name == "sink_mass") CHECK(quantity.reached == measured.mean.sink_mass);
    if (quantity.name == "recency") CHECK(quantity.reached == measured.mean.window_mass);
    if (quantity.name == "drift") CHECK(quantity.reached == measured.drift.value());
  }
  // Every head has its masses, and entropies are spread.
  std::vector<double> entropies;
  for (const HeadStatistics& head : measured.heads) {
    CHECK(head.sink_mass == Approx(0.35).epsilon(0.05));
    CHECK(head.window_mass == Approx(0.45).epsilon(0.05));
    entropies.push_back(head.entropy_nats);
  }
  std::sort(entropies.begin(), entropies.end());
  for (std::size_t i = 0; i < entropies.size(); ++i) {
    CHECK(entropies[i] == Approx(2 + 3.0 * static_cast<double>(i) / 7).epsilon(0.05));
  }
  const TraceCheck check = check_trace(folder.file("s.h5"));
  CHECK(check.good());
  CHECK(check.warnings.empty());
  CHECK_THAT(check.summary, ContainsSubstring("synthetic"));
}

TEST_CASE("latent traces have one row for K and V") {
  const TemporaryFolder folder;
  SynthSpec spec = small_spec();
  spec.latent = true;
  spec.kv_heads = 1;
  spec.q_heads = 16;
  spec.head_dim = 96;
  spec.v_head_dim = 64;
  check_reached(synthesize(spec, folder.file("s.h5")), 0.1);
  const TraceLayer layer = TraceReader(folder.file("s.h5")).read_layer(0);
  CHECK(layer.info.layout == KvLayout::kLatent);
  CHECK(layer.v.data.empty());
  CHECK(layer.values(0).dim == 64);
}

TEST_CASE("the same spec gives the same bytes with any number of threads; another seed does not") {
  const TemporaryFolder folder;
  SynthSpec spec = small_spec();
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  synthesize(spec, folder.file("a.h5"));
  omp_set_num_threads(5);
  synthesize(spec, folder.file("b.h5"));
  omp_set_num_threads(threads);
  CHECK(read_bytes(folder.file("a.h5")) == read_bytes(folder.file("b.h5")));
  spec.seed = 1;
  synthesize(spec, folder.file("c.h5"));
  CHECK(TraceReader(folder.file("a.h5")).read_layer(0).k.data !=
        TraceReader(folder.file("c.h5")).read_layer(0).k.data);
}

TEST_CASE("the prompt's last queries are drawn as those of decode steps, before them") {
  SynthSpec spec = small_spec();
  spec.probe_queries = 6;
  spec.drift = 0.1;
  const TemporaryFolder folder;
  check_reached(synthesize(spec, folder.file("s.h5")), 0.1);
  TraceLayer layer = TraceReader(folder.file("s.h5")).read_layer(0);
  REQUIRE(layer.probe->shape == std::array<std::int64_t, 3>{6, 8, 64});
  // As the decode steps of a prompt that ends six tokens earlier, they attend as asked.
  const HostTensor steps = std::exchange(layer.q, *layer.probe);
  const LayerStatistics probes = attention_statistics(layer, spec.prompt_tokens - 6);
  CHECK(probes.mean.sink_mass == Approx(spec.sink_mass).epsilon(0.1));
  CHECK(probes.mean.window_mass == Approx(spec.recency).epsilon(0.1));
  CHECK(*probes.drift == Approx(spec.drift).epsilon(0.2));
  // The last of them lies beside the first decode step.
  layer.q.shape[0] = 2;
  const auto bytes = static_cast<std::ptrdiff_t>(8 * 64 * bytes_of(spec.type));
  std::copy(layer.probe->data.end() - bytes, layer.probe->data.end(), layer.q.data.begin());
  std::copy(steps.data.begin(), steps.data.begin() + bytes, layer.q.data.begin() + bytes);
  CHECK(*attention_statistics(layer, spec.prompt_tokens - 1).drift ==
        Approx(spec.drift).epsilon(0.3));
}

TEST_CASE("keys are as correlated with their neighbours as asked, and as large") {
  const TemporaryFolder folder;
  SynthSpec spec = small_spec();
  spec.type = ElementType::kFloat32;
  spec.sink_mass = spec.recency = 0;
  spec.key_correlation = 0.5;
  synthesize(spec, folder.file("s.h5"));
  const TraceLayer layer = TraceReader(folder.file("s.h5")).read_layer(0);
  const std::vector<float> keys = values_of(layer.k);
  double square = 0;
  double next = 0;
  double far = 0;
  const std::size_t count = 4000 * 64;
  for (std::size_t i = 0; i < count; ++i) {
    square += static_cast<double>(keys[i]) * keys[i] / count;
    next += static_cast<double>(keys[i]) * keys[i + 64] / count;
    far += static_cast<double>(keys[i]) * keys[i + std::size_t{64 * 40}] / count;
  }
  CHECK(square == Approx(62.0 / 64).epsilon(0.03));  // two directions are taken out
  CHECK(next / square == Approx(0.5).margin(0.04));
  CHECK(std::abs(far / square) < 0.03);
}

TEST_CASE("what cannot be reached is written as near as possible and noted") {
  const TemporaryFolder folder;
  SynthSpec spec = small_spec();
  spec.entropy_low_nats = 0.1;  // the masses alone have more
  spec.entropy_high_nats = 9;   // more than ln(4100)
  const SynthResult result = synthesize(spec, folder.file("s.h5"));
  REQUIRE_FALSE(result.notes.empty());
  CHECK_THAT(result.notes.back(), ContainsSubstring("cannot have the entropy asked"));
  for (const SynthQuantity& quantity : result.quantities) {
    if (quantity.name == "sink_mass") CHECK(quantity.reached == Approx(0.35).epsilon(0.05));
    if (quantity.name == "entropy_low_nats") CHECK(quantity.reached > 1);
  }
  spec = small_spec();
  spec.group_correlation = 0;
  CHECK_THAT(synthesize(spec, folder.file("t.h5")).notes.at(0),
             ContainsSubstring("group_correlation = 0 cannot be reached"));
}

TEST_CASE("specs that make no sense are refused by name, before a file is made") {
  const TemporaryFolder folder;
  const auto refused = [&](auto&& change) {
    SynthSpec spec = small_spec();
    change(spec);
    CHECK_THROWS_AS(synthesize(spec, folder.file("s.h5")), UsageError);
    return error_of([&] { synthesize(spec, folder.file("s.h5")); });
  };
  CHECK_THAT(refused([](SynthSpec& s) { s.kv_heads = 3; }),
             ContainsSubstring("q_heads is 8 and kv_heads 3"));
  CHECK_THAT(refused([](SynthSpec& s) { s.sink_mass = 0.7; }),
             ContainsSubstring("sink_mass + recency is 1.15, expected at most 0.999"));
  CHECK_THAT(refused([](SynthSpec& s) { s.recency = -0.1; }),
             ContainsSubstring("recency is -0.1, expected 0 to 1"));
  CHECK_THAT(refused([](SynthSpec& s) { s.drift = NAN; }), ContainsSubstring("drift is nan"));
  CHECK_THAT(refused([](SynthSpec& s) { s.window_tokens = 4093; }),
             ContainsSubstring("leave nothing of 4096 prompt_tokens"));
  CHECK_THAT(refused([](SynthSpec& s) { s.entropy_low_nats = 7; }),
             ContainsSubstring("entropy_low_nats is 7, expected 0 to 5"));
  CHECK_THAT(refused([](SynthSpec& s) { s.latent = true; }),
             ContainsSubstring("kv_heads is 2, expected 1 with the latent layout"));
  CHECK_THAT(refused([](SynthSpec& s) { s.head_dim = 4; }), ContainsSubstring("head_dim is 4"));
  CHECK_THAT(refused([](SynthSpec& s) { s.probe_queries = 4096; }),
             ContainsSubstring("probe_queries is 4096, expected 0 to 4095"));
  CHECK_THAT(refused([](SynthSpec& s) { s.prompt_tokens = 0; }),
             ContainsSubstring("prompt_tokens"));
  CHECK(folder.files() == 0);
}

TEST_CASE("progress counts KV heads, an existing trace is kept without force") {
  const TemporaryFolder folder;
  SynthSpec spec = small_spec();
  spec.prompt_tokens = 512;
  spec.layers = 2;
  std::vector<std::int64_t> seen;
  SynthOptions options;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    CHECK(total == 4);
    seen.push_back(done);
  };
  synthesize(spec, folder.file("s.h5"), options);
  CHECK(seen == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK_THROWS_AS(synthesize(spec, folder.file("s.h5")), RuntimeError);
}

TEST_CASE("calibration meets masses exactly and entropy closely on normal scores") {
  synth::Profile profile;
  profile.sinks = {0.3, -1.0, 0.4, 0.1};
  for (int i = 0; i < 256; ++i) {
    profile.tail.push_back(std::sin(i * 1.7) * 1.4);
    profile.tail_features.push_back((i + 1) / 256.0);
  }
  profile.counts = synth::normal_counts(100000);
  for (const double entropy : {2.0, 3.5, 5.0}) {
    const synth::Coefficients found = synth::calibrate(profile, {entropy, 0.3, 0.4});
    CHECK(found.entropy_nats == Approx(entropy).epsilon(1e-4));
    double sinks = 0;
    double window = 0;
    double others = 0;
    for (const double score : profile.sinks) sinks += std::exp(found.tau * score + found.sink);
    for (std::size_t i = 0; i < profile.tail.size(); ++i) {
      window += std::exp(found.tau * profile.tail[i] + found.recency * profile.tail_features[i]);
    }
    for (int bin = 0; bin < synth::Profile::kBins; ++bin) {
      others += profile.counts[static_cast<std::size_t>(bin)] *
                std::exp(found.tau * synth::Profile::centre(bin));
    }
    const double total = sinks + window + others;
    CHECK(sinks / total == Approx(0.3).epsilon(1e-6));
    CHECK(window / total == Approx(0.4).epsilon(1e-6));
  }
}

}  // namespace kvsim::testing
