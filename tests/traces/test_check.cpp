#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/check.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

bool any_contains(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

std::string sample_path() {
  return std::string(KVSIM_SOURCE_DIR) + "/traces/samples/smollm2-135m-2k.h5";
}

}  // namespace

TEST_CASE("a check finds all problems, not only the first") {
  const TemporaryFolder folder;
  RawTrace raw;
  raw.attributes["/layers/0"].erase("scale");
  raw.attributes["/layers/0"]["kv_heads"] = std::int64_t{3};
  raw.datasets["/layers/7/k"].extent = {2, 21, 8};
  raw.datasets["/layers/7/q"].type = hdf5::NumberType::kFloat64;
  raw.datasets["/tokens"].extent = {5};
  raw.write(folder.file("t.h5"));
  const TraceCheck check = check_trace(folder.file("t.h5"));
  CHECK_FALSE(check.good());
  CHECK(check.problems.size() == 4);
  CHECK(any_contains(check.problems, "/layers/0: attribute 'scale' is missing"));
  CHECK(any_contains(check.problems, "/layers/7/k: shape is [2, 21, 8]"));
  CHECK(any_contains(check.problems, "/layers/7/q: type is float64"));
  CHECK(any_contains(check.problems, "/tokens: shape is [5]"));
}

TEST_CASE("a check reads the data of all layers") {
  const TemporaryFolder folder;
  RawTrace raw;
  for (const char* name : {"/layers/0/v", "/layers/7/k", "/layers/7/q"}) {
    raw.datasets[name].values = {NAN};
  }
  raw.write(folder.file("t.h5"));
  const TraceCheck check = check_trace(folder.file("t.h5"));
  CHECK(check.problems.size() == 3);
  CHECK(any_contains(check.problems, "/layers/7/q: value at [0, 0, 0]"));
}

TEST_CASE("a check of what cannot be opened says so") {
  CHECK(check_trace("/nonexistent.h5").problems.at(0) == "/nonexistent.h5: no such file");
  CHECK(check_trace("/nonexistent.h5").summary.empty());
}

TEST_CASE("implausible data gives warnings") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  RawTrace raw;
  raw.write(path);
  CHECK(any_contains(check_trace(path).warnings, "attribute 'license' is missing"));

  raw.datasets["/layers/0/k"].values.assign(2 * 22 * 8, 0.5f);
  raw.write(path);
  TraceCheck check = check_trace(path);
  CHECK(check.good());
  CHECK(any_contains(check.warnings, "/layers/0/k: all values are equal"));
  CHECK(any_contains(check.warnings, "/layers/0/q: attention is uniform"));
  CHECK_FALSE(any_contains(check.warnings, "/layers/7/"));

  raw = RawTrace();
  raw.datasets["/layers/0/v"].values.assign(8, 1.0f);  // all other rows are zero
  raw.attributes["/layers/7"]["scale"] = 1000.0;
  raw.write(path);
  check = check_trace(path);
  CHECK(any_contains(check.warnings, "/layers/0/v: 97.7 % of the rows repeat the row before"));
  CHECK(any_contains(check.warnings, "/layers/7/q: one token takes"));
  CHECK(any_contains(check.warnings, "/layers/7/q: a logit has magnitude"));
  CHECK(any_contains(check.warnings, "check 'scale' (1000, 1/sqrt(head_dim) is 0.353553)"));
}

TEST_CASE("rows that repeat in a synthetic trace are no padding") {
  const TemporaryFolder folder;
  RawTrace raw;
  raw.datasets["/layers/0/v"].values.assign(8, 1.0f);  // all other rows are zero
  raw.attributes["/"]["synthetic"] = std::int64_t{1};
  raw.write(folder.file("t.h5"));
  CHECK_FALSE(any_contains(check_trace(folder.file("t.h5")).warnings, "padding"));
}

TEST_CASE("the largest values, scales and sinks that are let in give finite statistics") {
  const TemporaryFolder folder;
  RawTrace raw;
  for (const char* name : {"/layers/0/k", "/layers/0/v", "/layers/0/q"}) {
    RawTrace::Data& data = raw.datasets[name];
    data.values.assign(static_cast<std::size_t>(hdf5::elements_of(data.extent)), 1e12f);
  }
  raw.attributes["/layers/0"]["scale"] = 1e6;
  raw.datasets["/layers/7/sink_logits"] = {hdf5::NumberType::kFloat32, {4}, {1e12f, -1e12f, 0, 9}};
  raw.write(folder.file("t.h5"));
  CHECK(check_trace(folder.file("t.h5")).good());
  const TraceReport report = describe_trace(folder.file("t.h5"));
  for (const LayerReport& layer : report.layers) {
    CHECK(std::isfinite(layer.statistics.largest_logit));
    CHECK(std::isfinite(layer.statistics.sink_share));
    CHECK(std::isfinite(layer.statistics.mean.entropy_nats));
  }
  CHECK(report.layers.at(1).statistics.sink_share > 0.25);  // one head's sink takes all
}

TEST_CASE("outputs and sums that do not follow from Q, K and V give warnings") {
  const TemporaryFolder folder;
  RawTrace raw;
  raw.datasets["/layers/0/o"] = {hdf5::NumberType::kFloat32, {2, 4, 8}, {}};
  raw.datasets["/layers/0/attention_sum"] = {hdf5::NumberType::kFloat32, {4, 20}, {0.5f}};
  raw.write(folder.file("t.h5"));
  const TraceCheck check = check_trace(folder.file("t.h5"));
  CHECK(check.good());
  CHECK(any_contains(check.warnings, "/layers/0/o: differs from the attention of q, k and v"));
  CHECK(any_contains(check.warnings, "/layers/0/attention_sum: head 0 sums to"));
}

TEST_CASE("the real sample in the repository is sound and looks like a language model") {
  const TraceCheck check = check_trace(sample_path());
  CHECK(check.problems == std::vector<std::string>{});
  CHECK(check.warnings == std::vector<std::string>{});
  const TraceReport report = describe_trace(sample_path());
  CHECK_FALSE(report.info.synthetic);
  CHECK(report.info.prompt_tokens == 2048);
  CHECK(report.has_tokens);
  REQUIRE(report.layers.size() >= 3);
  CHECK(report.file_bytes > 1'000'000);
  for (const LayerReport& layer : report.layers) {
    CHECK(layer.info.q_heads == 9);
    CHECK(layer.info.kv_heads == 3);
    CHECK(layer.info.kv_type == ElementType::kBfloat16);
    CHECK(layer.kv_bytes == 2 * 3 * report.info.tokens() * 64 * 2);
    CHECK(layer.statistics.mean.entropy_nats > 1);
    CHECK(layer.statistics.mean.entropy_nats < 7);
    // The file holds exactly what the model attended to.
    REQUIRE(layer.output_error.has_value());
    CHECK(*layer.output_error < 1e-4);
  }
  // Deep layers look at the first tokens, the first one does not.
  CHECK(report.layers.front().statistics.mean.sink_mass < 0.05);
  CHECK(report.layers.back().statistics.mean.sink_mass > 0.1);
}

TEST_CASE("a summary names sizes and types") {
  SmallShape shape;
  TraceInfo info = small_info(shape);
  info.layers.push_back(small_layer(shape, 0).info);
  CHECK(summarize(info) == "Tiny-Modèl, 1 layer, 40 + 3 tokens, 6/2 heads of 16/8, bfloat16");
}

}  // namespace kvsim::testing
