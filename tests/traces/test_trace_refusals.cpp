#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/check.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

using hdf5::NumberType;

/// Reads everything of a trace; the message of what goes wrong.
std::string read_all(const std::string& path) {
  return error_of([&] {
    const TraceReader reader(path);
    reader.read_tokens();
    for (std::size_t i = 0; i < reader.info().layers.size(); ++i) reader.read_layer(i);
  });
}

struct Refusal {
  const char* name;
  std::function<void(RawTrace&)> damage;
  const char* message;  // after "path: "
};

std::vector<Refusal> refusals_of_attributes() {
  const auto set = [](const char* object, const char* name, RawTrace::Value value) {
    return [=](RawTrace& raw) { raw.attributes[object][name] = value; };
  };
  const auto drop = [](const char* object, const char* name) {
    return [=](RawTrace& raw) { raw.attributes[object].erase(name); };
  };
  const auto whole = [](std::int64_t value) { return RawTrace::Value(value); };
  const auto text = [](const char* value) { return RawTrace::Value(std::string(value)); };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"format", set("/", "format", text("other")),
       "/: attribute 'format' is 'other', expected 'kvsim-trace'"},
      {"no format", drop("/", "format"), "/: attribute 'format' is missing"},
      {"version", set("/", "version", whole(2)),
       "/: attribute 'version' is 2, this program reads version 1"},
      {"no steps", drop("/", "decode_steps"), "/: attribute 'decode_steps' is missing"},
      {"zero steps", set("/", "decode_steps", whole(0)),
       "/: attribute 'decode_steps' is 0, expected 1 to 2147483647"},
      {"model type", set("/", "model", whole(3)),
       "/: attribute 'model' is int64, expected a string"},
      {"rope", set("/", "rope", text("yes")),
       "/: attribute 'rope' is 'yes', expected 'applied' or 'none'"},
      {"no q_heads", drop("/layers/7", "q_heads"), "/layers/7: attribute 'q_heads' is missing"},
      {"q_heads type", set("/layers/0", "q_heads", RawTrace::Value(4.0)),
       "/layers/0: attribute 'q_heads' is float64, expected an integer"},
      {"q_heads text", set("/layers/0", "q_heads", text("4")),
       "/layers/0: attribute 'q_heads' is a string, expected an integer"},
      {"scale text", set("/layers/0", "scale", text("0.1")),
       "/layers/0: attribute 'scale' is a string, expected a number"},
      {"heads", set("/layers/0", "kv_heads", whole(3)),
       "/layers/0: q_heads is 4 and kv_heads 3, expected a whole multiple"},
      {"no heads", set("/layers/0", "kv_heads", whole(0)),
       "/layers/0: attribute 'kv_heads' is 0, expected 1 to 65535"},
      {"scale", set("/layers/0", "scale", RawTrace::Value(0.0)),
       "/layers/0: attribute 'scale' is 0, expected 1e-06 to 1000000"},
      {"negative scale", set("/layers/0", "scale", RawTrace::Value(-0.1)),
       "/layers/0: attribute 'scale' is -0.1, expected 1e-06 to 1000000"},
      {"huge scale", set("/layers/0", "scale", RawTrace::Value(1e300)),
       "/layers/0: attribute 'scale' is 1e+300, expected 1e-06 to 1000000"},
      {"infinite scale", set("/layers/0", "scale", RawTrace::Value(INFINITY)),
       "/layers/0: attribute 'scale' is inf, expected 1e-06 to 1000000"},
      {"scale NaN", set("/layers/0", "scale", RawTrace::Value(nan)),
       "/layers/0: attribute 'scale' is nan, expected 1e-06 to 1000000"},
      {"window", set("/layers/0", "window", whole(-1)), "/layers/0: attribute 'window' is -1"},
      {"cap", set("/layers/0", "logit_cap", RawTrace::Value(-5.0)),
       "/layers/0: attribute 'logit_cap' is -5, expected 0 to 1000000"},
      {"tiny cap", set("/layers/0", "logit_cap", RawTrace::Value(1e-30)),
       "/layers/0: attribute 'logit_cap' is 1e-30, expected 0 (none) or at least 0.001"},
      {"model bytes", set("/", "model", text("caf\xe9")), "/: attribute 'model' is not UTF-8"},
      {"layout", set("/layers/0", "layout", text("pages")),
       "/layers/0: attribute 'layout' is 'pages', expected 'heads' or 'latent'"},
      {"latent heads", set("/layers/0", "layout", text("latent")),
       "/layers/0: kv_heads is 2, expected 1 with the latent layout"},
  };
}

std::vector<Refusal> refusals_of_datasets() {
  const auto set = [](const char* name, NumberType type, hdf5::Extent extent) {
    return [=](RawTrace& raw) { raw.datasets[name] = {type, extent, {}}; };
  };
  const auto learn = [](const std::string& layer, const std::string& name, NumberType type,
                        hdf5::Extent extent) {
    return [=](RawTrace& raw) {
      raw.attributes[layer + "/parameters"] = {};  // the group
      raw.datasets[layer + "/parameters/" + name] = {type, extent, {}};
    };
  };
  const auto prepare = [](const std::function<void(RawTrace&)>& damage) {
    return [=](RawTrace& raw) {
      raw.attributes["/layers/7/state/method"]["settings"] = std::string("none");
      for (const std::string head : {"/layers/7/state/method/0", "/layers/7/state/method/1"}) {
        raw.attributes[head] = {};  // the group
        raw.datasets[head + "/list"] = {NumberType::kInt32, {30}, {}};
      }
      damage(raw);
    };
  };
  const auto poison = [](const char* name, float value) {
    return [=](RawTrace& raw) {
      RawTrace::Data& data = raw.datasets[name];
      data.values.assign(static_cast<std::size_t>(hdf5::elements_of(data.extent)), 0.5f);
      data.values[45] = value;
    };
  };
  return {
      {"no k", [](RawTrace& raw) { raw.datasets.erase("/layers/0/k"); },
       "/layers/0/k: dataset is missing"},
      {"k tokens", set("/layers/0/k", NumberType::kFloat32, {2, 20, 8}),
       "/layers/0/k: shape is [2, 20, 8], expected [2, 22, 8] (kv_heads, prompt_tokens + "
       "decode_steps, head_dim)"},
      {"v dim", set("/layers/7/v", NumberType::kFloat32, {2, 22, 4}),
       "/layers/7/v: shape is [2, 22, 4], expected [2, 22, 8]"},
      {"q heads", set("/layers/0/q", NumberType::kFloat32, {2, 2, 8}),
       "/layers/0/q: shape is [2, 2, 8], expected [2, 4, 8] (decode_steps, q_heads, head_dim)"},
      {"q rank", set("/layers/0/q", NumberType::kFloat32, {4, 8}),
       "/layers/0/q: shape is [4, 8], expected [2, 4, 8]"},
      {"k type", set("/layers/0/k", NumberType::kFloat64, {2, 22, 8}),
       "/layers/0/k: type is float64, expected little-endian float32, float16 or bfloat16"},
      {"k integers", set("/layers/0/k", NumberType::kInt32, {2, 22, 8}),
       "/layers/0/k: type is int32, expected"},
      {"k and v", set("/layers/0/v", NumberType::kBfloat16, {2, 22, 8}),
       "/layers/0: k is float32 and v bfloat16, expected one type"},
      {"probe", set("/layers/0/probe", NumberType::kFloat32, {0, 4, 8}),
       "/layers/0/probe: shape is [0, 4, 8], expected [n, 4, 8] (n, q_heads, head_dim)"},
      {"long probe", set("/layers/0/probe", NumberType::kFloat32, {21, 4, 8}),
       "/layers/0/probe: holds 21 queries, expected at most prompt_tokens = 20"},
      {"o", set("/layers/0/o", NumberType::kFloat32, {2, 4, 9}),
       "/layers/0/o: shape is [2, 4, 9], expected [2, 4, 8]"},
      {"sum", set("/layers/0/attention_sum", NumberType::kFloat32, {4, 22}),
       "/layers/0/attention_sum: shape is [4, 22], expected [4, 20] (q_heads, prompt_tokens)"},
      {"sinks", set("/layers/0/sink_logits", NumberType::kFloat32, {2}),
       "/layers/0/sink_logits: shape is [2], expected [4] (q_heads)"},
      {"tokens", set("/tokens", NumberType::kInt32, {20}),
       "/tokens: shape is [20], expected [22] (prompt_tokens + decode_steps)"},
      {"token type", set("/tokens", NumberType::kFloat32, {22}),
       "/tokens: type is float32, expected int32"},
      {"wide tokens", set("/tokens", NumberType::kInt64, {22}),
       "/tokens: type is int64, expected int32"},
      {"negative sum",
       [](RawTrace& raw) {
         raw.datasets["/layers/0/attention_sum"] = {NumberType::kFloat32, {4, 20}, {}};
         raw.datasets["/layers/0/attention_sum"].values = {1, 0, 2, -0.5f};
       },
       "/layers/0/attention_sum: value at [0, 3] (q_heads, prompt_tokens) is -0.5, expected a sum "
       "of probabilities >= 0"},
      {"sink",
       [](RawTrace& raw) {
         raw.datasets["/layers/0/sink_logits"] = {NumberType::kFloat32, {4}, {0, 1e30f, 0, 0}};
       },
       "/layers/0/sink_logits: value at [1] (q_heads) is 1e+30, expected a magnitude below 2^40"},
      {"parameter type", learn("/layers/7", "bias", NumberType::kFloat64, {4}),
       "/layers/7/parameters/bias: type is float64, expected little-endian float32, float16 or "
       "bfloat16"},
      {"parameter rank", learn("/layers/0", "weight", NumberType::kFloat32, {2, 2, 2, 2}),
       "/layers/0/parameters/weight: shape is [2, 2, 2, 2], expected 1 to 3 dimensions, none of "
       "them 0"},
      {"empty parameter", learn("/layers/0", "weight", NumberType::kFloat32, {32, 0}),
       "/layers/0/parameters/weight: shape is [32, 0], expected 1 to 3 dimensions"},
      {"state without settings",
       prepare([](RawTrace& raw) { raw.attributes["/layers/7/state/method"].clear(); }),
       "/layers/7/state/method: attribute 'settings' is missing"},
      {"settings type", prepare([](RawTrace& raw) {
         raw.attributes["/layers/7/state/method"]["settings"] = std::int64_t{3};
       }),
       "/layers/7/state/method: attribute 'settings' is int64, expected a string"},
      {"settings in Latin-1", prepare([](RawTrace& raw) {
         raw.attributes["/layers/7/state/method"]["settings"] = std::string("\xe9");
       }),
       "/layers/7/state/method: attribute 'settings' is not UTF-8"},
      {"state of too many heads",
       prepare([](RawTrace& raw) { raw.attributes["/layers/7/state/method/2"] = {}; }),
       "/layers/7/state/method: holds 3 groups, expected one for each KV head: 2"},
      {"state of another head", prepare([](RawTrace& raw) {
         raw.attributes.erase("/layers/7/state/method/1");
         raw.datasets.erase("/layers/7/state/method/1/list");
         raw.attributes["/layers/7/state/method/01"] = {};
       }),
       "/layers/7/state/method/1: expected a group"},
      {"state type", prepare([](RawTrace& raw) {
         raw.datasets["/layers/7/state/method/1/list"].type = NumberType::kInt64;
       }),
       "/layers/7/state/method/1/list: type is int64, expected int32"},
      {"state rank", prepare([](RawTrace& raw) {
         raw.datasets["/layers/7/state/method/0/list"].extent = {3, 10};
       }),
       "/layers/7/state/method/0/list: shape is [3, 10], expected one dimension"},
      {"no state", set("/layers/0/state", NumberType::kFloat32, {4}), "/layers/0/state"},
      {"state as a dataset",
       [](RawTrace& raw) {
         raw.attributes["/layers/0/state"] = {};  // the group
         raw.datasets["/layers/0/state/method"] = {NumberType::kInt32, {4}, {}};
       },
       "/layers/0/state/method: expected a group"},
      {"no group", set("/layers/0/parameters", NumberType::kFloat32, {4}), "/layers/0/parameters"},
      {"parameter NaN",
       [](RawTrace& raw) {
         raw.attributes["/layers/0/parameters"] = {};
         raw.datasets["/layers/0/parameters/weight"] = {NumberType::kFloat32, {2, 3}, {}};
         raw.datasets["/layers/0/parameters/weight"].values = {1, 0, 2, 3, NAN};
       },
       "/layers/0/parameters/weight: value at [1, 1] (a learned parameter) is not finite"},
      {"token sign", [](RawTrace& raw) { raw.datasets["/tokens"].values = {-1}; },
       "/tokens: token 0 is -1, expected an id >= 0"},
      {"layer name", [](RawTrace& raw) { raw.attributes["/layers/x1"]["scale"] = 0.1; },
       "/layers/x1: expected a layer number from 0 to 4095"},
      {"layer number", [](RawTrace& raw) { raw.attributes["/layers/5000"]["scale"] = 0.1; },
       "/layers/5000: expected a layer number from 0 to 4095"},
      {"k NaN", poison("/layers/0/k", NAN),
       "/layers/0/k: value at [0, 5, 5] (kv_heads, prompt_tokens + decode_steps, head_dim) is not "
       "finite"},
      {"v huge", poison("/layers/7/v", 3e38f),
       "/layers/7/v: value at [0, 5, 5] (kv_heads, prompt_tokens + decode_steps, v_head_dim) is "
       "3e+38, expected a magnitude below 2^40"},
      {"v infinite", poison("/layers/7/v", INFINITY), "/layers/7/v: value at [0, 5, 5]"},
      {"q infinite", poison("/layers/0/q", -INFINITY),
       "/layers/0/q: value at [1, 1, 5] (decode_steps, q_heads, head_dim) is not finite"},
  };
}

void check_refusals(const std::vector<Refusal>& refusals) {
  const TemporaryFolder folder;
  for (const Refusal& refusal : refusals) {
    INFO(refusal.name);
    RawTrace raw;
    refusal.damage(raw);
    const std::string path = folder.file("bad.h5");
    raw.write(path);
    CHECK_THAT(read_all(path), ContainsSubstring(path + ": " + refusal.message));
    // The check finds the same, and whatever else there is.
    const TraceCheck check = check_trace(path);
    REQUIRE_FALSE(check.good());
    CHECK_THAT(check.problems.front(), ContainsSubstring(refusal.message));
  }
}

}  // namespace

TEST_CASE("the raw trace of these tests is a good one") {
  const TemporaryFolder folder;
  RawTrace().write(folder.file("good.h5"));
  CHECK(read_all(folder.file("good.h5")).empty());
  CHECK(check_trace(folder.file("good.h5")).good());
}

TEST_CASE("wrong attributes are refused with file, object, what was found and expected") {
  check_refusals(refusals_of_attributes());
}

TEST_CASE("wrong datasets are refused with file, object, what was found and expected") {
  check_refusals(refusals_of_datasets());
}

TEST_CASE("latent traces must fit their layout") {
  const TemporaryFolder folder;
  const std::string path = folder.file("latent.h5");
  RawTrace raw;
  raw.attributes.erase("/layers/7");
  for (const char* name : {"k", "v", "q"}) raw.datasets.erase(std::string("/layers/7/") + name);
  raw.attributes["/layers/0"]["layout"] = std::string("latent");
  raw.attributes["/layers/0"]["kv_heads"] = std::int64_t{1};
  raw.attributes["/layers/0"]["v_head_dim"] = std::int64_t{9};
  raw.write(path);
  CHECK_THAT(read_all(path), ContainsSubstring("v_head_dim is 9, expected at most head_dim = 8"));
  raw.attributes["/layers/0"]["v_head_dim"] = std::int64_t{6};
  raw.write(path);
  CHECK_THAT(read_all(path), ContainsSubstring("/layers/0/kv: dataset is missing"));
  raw.datasets["/layers/0/kv"] = {NumberType::kFloat32, {22, 8}, {}};
  raw.write(path);
  CHECK_THAT(read_all(path),
             ContainsSubstring("/layers/0/kv: shape is [22, 8], expected [1, 22, 8]"));
  raw.datasets["/layers/0/kv"].extent = {1, 22, 8};
  raw.write(path);
  CHECK(read_all(path).empty());
  const TraceLayer layer = TraceReader(path).read_layer(0);
  CHECK(layer.values(0).dim == 6);
  CHECK(layer.values(0).stride == 8);
}

TEST_CASE("what is no trace is refused by name") {
  const TemporaryFolder folder;
  CHECK_THAT(read_all(folder.file("none.h5")), ContainsSubstring("none.h5: no such file"));
  CHECK_THAT(read_all(folder.file("")), ContainsSubstring("is a folder, expected an HDF5 file"));
  write_bytes(folder.file("text.h5"), "not HDF5 at all, but long enough to look at");
  CHECK_THAT(read_all(folder.file("text.h5")), ContainsSubstring("text.h5: not an HDF5 file"));
  write_bytes(folder.file("empty.h5"), "");
  CHECK_THAT(read_all(folder.file("empty.h5")), ContainsSubstring("empty.h5: not an HDF5 file"));
  hdf5::File::create(folder.file("bare.h5"), "bare.h5").close();
  CHECK_THAT(read_all(folder.file("bare.h5")), ContainsSubstring("attribute 'format' is missing"));
  RawTrace raw;
  raw.attributes.erase("/layers/0");
  raw.attributes.erase("/layers/7");
  raw.datasets.clear();
  raw.write(folder.file("nolayers.h5"));
  CHECK_THAT(read_all(folder.file("nolayers.h5")), ContainsSubstring("/layers: holds no layer"));
}

TEST_CASE("an extent that the file cannot hold leads to no allocation") {
  const TemporaryFolder folder;
  RawTrace raw;
  raw.attributes["/"]["prompt_tokens"] = std::int64_t{2000000000};
  raw.datasets.erase("/tokens");
  raw.write(folder.file("t.h5"));
  hdf5::File file = hdf5::File::create(folder.file("big.h5"), "big.h5");
  const hdf5::Dataset dataset =
      file.create_dataset("/k", NumberType::kFloat32, {1000, 2000000000, 128});
  CHECK_THAT(error_of([&] { dataset.checked_bytes(); }),
             ContainsSubstring("/k: shape [1000, 2000000000, 128] needs 1024000000000000 bytes"));
}

}  // namespace kvsim::testing
