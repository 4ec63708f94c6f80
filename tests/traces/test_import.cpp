#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/safetensors_testing.h"
#include "tests/traces/trace_testing.h"
#include "traces/import.h"
#include "traces/safetensors.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

using nlohmann::json;

SmallShape shape_of(ElementType type) {
  SmallShape shape;
  shape.type = type;
  return shape;
}

Safetensors make_safetensors(const SmallShape& shape) {
  Safetensors file;
  file.header["__metadata__"] = {{"num_attention_heads", "6"},
                                 {"num_key_value_heads", "2"},
                                 {"head_dim", "16"},
                                 {"v_head_dim", "8"},
                                 {"prompt_tokens", "40"},
                                 {"decode_steps", "3"},
                                 {"scale", "0.25"},
                                 {"rope_theta", "100000.0"},
                                 {"model", "Hand-made"}};
  for (const int number : {3, 11}) {
    const TraceLayer layer = small_layer(shape, number);
    const std::string prefix = fmt::format("layers.{}.", number);
    file.add(prefix + "q", layer.q);
    file.add(prefix + "k", layer.k);
    file.add(prefix + "v", layer.v);
    if (number == 3) file.add(prefix + "q_probe", *layer.probe);
  }
  return file;
}

struct Importer {
  TemporaryFolder folder;

  ImportResult import(const std::string& bytes, const std::string& name = "in.safetensors",
                      const ImportOptions& options = {}) const {
    write_bytes(folder.file(name), bytes);
    return import_trace(folder.file(name), folder.file("out.h5"), options);
  }
  std::string error(const std::string& bytes, const std::string& name = "in.safetensors",
                    const ImportOptions& options = {}) const {
    const std::string message = error_of([&] { import(bytes, name, options); });
    CHECK_FALSE(std::filesystem::exists(folder.file("out.h5")));
    return message;
  }
};

}  // namespace

TEST_CASE("safetensors become a trace of the same bits") {
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16);
  const SmallShape shape = shape_of(type);
  const Importer importer;
  const ImportResult result = importer.import(make_safetensors(shape).bytes());
  CHECK(result.notes.size() == 1);
  CHECK_THAT(result.notes.at(0), ContainsSubstring("no metadata 'rope': taken as 'applied'"));
  const TraceReader reader(importer.folder.file("out.h5"));
  CHECK(reader.info().model == "Hand-made");
  CHECK(reader.info().prompt_tokens == 40);
  CHECK(reader.info().rope == "applied");
  CHECK(reader.info().rope_theta == 1e5);
  REQUIRE(reader.info().layers.size() == 2);
  const TraceLayer layer = reader.read_layer(0);
  const TraceLayer expected = small_layer(shape, 3);
  CHECK(layer.info.layer == 3);
  CHECK(layer.info.scale == 0.25);
  CHECK(layer.info.window == 0);
  CHECK(layer.info.kv_type == type);
  CHECK(layer.k.data == expected.k.data);
  CHECK(layer.v.data == expected.v.data);
  CHECK(layer.q.data == expected.q.data);
  CHECK(layer.probe->data == expected.probe->data);
  CHECK_FALSE(reader.read_layer(1).probe.has_value());
}

TEST_CASE("learned parameters are imported, whatever their names") {
  const Importer importer;
  Safetensors file = make_safetensors(SmallShape{});
  file.add("layers.3.parameters.eta_threshold_bias", "F32", {2},
           text_of(random_tensor(ElementType::kFloat32, 1, 1, 2, 1).data));
  CHECK(importer.import(file.bytes()).notes.size() == 1);
  const TraceReader reader(importer.folder.file("out.h5"));
  const LearnedParameters learned = reader.read_layer(0).learned;
  REQUIRE(learned.size() == 1);
  CHECK(learned.at("eta_threshold_bias").shape == std::array<std::int64_t, 3>{1, 1, 2});
  CHECK(reader.read_layer(1).learned.empty());
}

TEST_CASE("learned parameters that no trace can hold are refused by name") {
  const auto refused = [](const std::string& name, const std::vector<std::int64_t>& shape,
                          const std::string& bytes) {
    const Importer importer;
    Safetensors file = make_safetensors(SmallShape{});
    file.add(name, "F32", shape, bytes);
    return importer.error(file.bytes());
  };
  const std::string name = "layers.3.parameters.w";
  CHECK_THAT(refused(name, {1, 1, 1, 1}, "abcd"),
             ContainsSubstring("tensor 'layers.3.parameters.w': shape is [1, 1, 1, 1], expected 1 "
                               "to 3 dimensions, none of them 0"));
  CHECK_THAT(refused(name, {0}, ""), ContainsSubstring("shape is [0], expected 1 to 3"));
  CHECK_THAT(refused(name, {1}, std::string("\0\0\x80\x7f", 4)),
             ContainsSubstring("value at [0, 0, 0] (a learned parameter) is not finite"));
  CHECK_THAT(refused("layers.3.parameters.a/b", {1}, "abcd"), ContainsSubstring("has a /"));
}

TEST_CASE("metadata that is missing or wrong is refused by name") {
  const Importer importer;
  const auto refused = [&](const char* key, const json& value) {
    Safetensors file = make_safetensors(SmallShape{});
    if (value.is_null()) {
      file.header["__metadata__"].erase(key);
    } else {
      file.header["__metadata__"][key] = value;
    }
    return importer.error(file.bytes());
  };
  for (const char* key : {"num_attention_heads", "num_key_value_heads", "head_dim", "prompt_tokens",
                          "decode_steps", "scale"}) {
    CHECK_THAT(refused(key, nullptr),
               ContainsSubstring(fmt::format("in.safetensors: metadata '{}' is missing", key)));
  }
  CHECK_THAT(refused("head_dim", "sixteen"),
             ContainsSubstring("metadata 'head_dim' is 'sixteen', expected a whole number"));
  CHECK_THAT(refused("head_dim", "16.5"), ContainsSubstring("is '16.5', expected a whole number"));
  CHECK_THAT(refused("scale", "-1"), ContainsSubstring("metadata 'scale' is '-1'"));
  CHECK_THAT(refused("scale", "inf"), ContainsSubstring("metadata 'scale' is 'inf'"));
  CHECK_THAT(refused("rope", "maybe"), ContainsSubstring("metadata 'rope' is 'maybe'"));
  CHECK_THAT(refused("num_key_value_heads", "4"), ContainsSubstring("expected a whole multiple"));
  CHECK_THAT(refused("scale", 0.25),
             ContainsSubstring("__metadata__ 'scale' is number, expected a string"));
}

TEST_CASE("tensors that are missing or wrong are refused by name") {
  const Importer importer;
  const auto refused = [&](auto&& change) {
    Safetensors file = make_safetensors(SmallShape{});
    change(file);
    return importer.error(file.bytes());
  };
  CHECK_THAT(refused([](Safetensors& file) { file.header.erase("layers.3.v"); }),
             ContainsSubstring("tensor 'layers.3.v' is missing; the file holds layers.11.k"));
  CHECK_THAT(refused([](Safetensors& file) { file.header["__metadata__"]["decode_steps"] = "4"; }),
             ContainsSubstring("tensor 'layers.3.k': shape is [2, 43, 16], expected [2, 44, 16]"));
  CHECK_THAT(refused([](Safetensors& file) { file.header["layers.3.k"]["dtype"] = "I16"; }),
             ContainsSubstring("tensor 'layers.3.k': dtype is I16, expected F32, F16 or BF16"));
  CHECK_THAT(refused([](Safetensors& file) { file.header["layers.3.k"]["dtype"] = "F16"; }),
             ContainsSubstring("layer 3: k is float16 and v bfloat16, expected one dtype"));
  CHECK_THAT(refused([](Safetensors& file) { file.header["layers.3.k"]["dtype"] = "C99"; }),
             ContainsSubstring("tensor 'layers.3.k': unknown dtype 'C99'"));
  CHECK_THAT(refused([](Safetensors& file) {
               const auto at = file.header["layers.11.q"]["data_offsets"][0].get<std::size_t>();
               file.data[at + 2 * 17] = '\xff';  // step 0, head 1, dim 1
               file.data[at + 2 * 17 + 1] = '\x7f';
             }),
             ContainsSubstring("tensor 'layers.11.q': value at [0, 1, 1] (decode_steps, q_heads, "
                               "head_dim) is not finite"));
  CHECK_THAT(refused([](Safetensors& file) {
               for (const char* name : {"layers.3.q", "layers.3.k", "layers.3.v", "layers.11.q",
                                        "layers.11.k", "layers.11.v", "layers.3.q_probe"}) {
                 file.header.erase(name);
               }
             }),
             ContainsSubstring("no tensor 'layers.<i>.q', '.k' or '.v' in the file"));
}

TEST_CASE("tensors of other names are ignored with a note") {
  const Importer importer;
  Safetensors file = make_safetensors(SmallShape{});
  file.add("layers.3.extra", "F32", {1}, "abcd");
  file.add("embedding", "F32", {1}, "abcd");
  const ImportResult result = importer.import(file.bytes());
  CHECK(result.notes.size() == 3);
}

TEST_CASE("damaged safetensors files are refused") {
  const Importer importer;
  const Safetensors good = make_safetensors(SmallShape{});
  const auto broken = [&](auto&& change) {
    Safetensors file = good;
    change(file.header);
    return importer.error(file.bytes());
  };
  CHECK_THAT(importer.error("short"), ContainsSubstring("5 bytes are no safetensors file"));
  CHECK_THAT(importer.error(std::string(8, '\xff')), ContainsSubstring("the header shall have"));
  CHECK_THAT(importer.error(good.bytes().substr(0, 200)), ContainsSubstring("(truncated, or no"));
  CHECK_THAT(importer.error(good.bytes().substr(0, good.bytes().size() - 1)),
             ContainsSubstring("expected to lie within the"));
  CHECK_THAT(importer.error(good.with_header("{\"a\": ")), ContainsSubstring("no valid JSON"));
  CHECK_THAT(importer.error(good.with_header("[1, 2]")), ContainsSubstring("no JSON object"));
  CHECK_THAT(importer.error(good.with_header(std::string(100000, '['))),
             ContainsSubstring("no valid JSON"));
  const char* const kMalformed = "expected an object with dtype, shape and two data_offsets";
  CHECK_THAT(broken([](json& h) { h["layers.3.k"].erase("shape"); }),
             ContainsSubstring(kMalformed));
  CHECK_THAT(broken([](json& h) { h["layers.3.k"]["shape"][0] = -2; }),
             ContainsSubstring(kMalformed));
  CHECK_THAT(broken([](json& h) { h["layers.3.k"]["shape"][0] = "2"; }),
             ContainsSubstring(kMalformed));
  CHECK_THAT(broken([](json& h) { h["layers.3.k"] = 4; }), ContainsSubstring(kMalformed));
  CHECK_THAT(broken([](json& h) { h["layers.3.k"]["data_offsets"] = {1}; }),
             ContainsSubstring(kMalformed));
  CHECK_THAT(broken([](json& h) { h["layers.3.k"]["data_offsets"][0] = 1e30; }),
             ContainsSubstring(kMalformed));
  CHECK_THAT(broken([](json& h) { h["layers.3.k"]["shape"][0] = 3; }),
             ContainsSubstring("data_offsets span 2752 bytes, expected 4128 for BF16 [3, 43, 16]"));
  CHECK_THAT(broken([](json& h) {
               h["layers.3.k"]["shape"] = {1ull << 40, 1ull << 40};
             }),
             ContainsSubstring("expected 9223372036854775807"));
  CHECK_THAT(broken([](json& h) {
               h["layers.3.k"]["data_offsets"] = {10, 4};
             }),
             ContainsSubstring("data_offsets are [10, 4]"));
  CHECK_THAT(broken([](json& h) {
               h["layers.3.k"]["data_offsets"] = {0, 2752};
             }),
             ContainsSubstring("overlap"));
  CHECK_THAT(broken([](json& h) { h["__metadata__"] = 3; }),
             ContainsSubstring("__metadata__ is no JSON object"));
}

TEST_CASE("flipped and cut safetensors files never crash the import") {
  const Importer importer;
  const std::string good = make_safetensors(SmallShape{}).bytes();
  std::uint32_t state = 1;
  for (int trial = 0; trial < 300; ++trial) {
    std::string bad = good;
    for (int flip = 0; flip < 3; ++flip) {
      state = state * 1664525 + 1013904223;
      bad[(state >> 8) % 1500] = static_cast<char>(state >> 24);
    }
    if (trial % 3 == 0) bad.resize((state >> 8) % good.size());
    const ImportOptions force{true, false, {}, {}};
    write_bytes(importer.folder.file("in.safetensors"), bad);
    const auto run = [&] {
      import_trace(importer.folder.file("in.safetensors"), importer.folder.file("out.h5"), force);
    };
    CHECK_NOTHROW(error_of(run));  // RuntimeError is fine, anything else is not
  }
}

TEST_CASE("an unknown kind of file is a wrong value") {
  CHECK_THROWS_AS(import_trace("a.npz", "b.h5"), UsageError);
  CHECK_THAT(error_of([] { import_trace("/nonexistent/a.safetensors", "b.h5"); }),
             ContainsSubstring("/nonexistent/a.safetensors: cannot open the file"));
}

}  // namespace kvsim::testing
