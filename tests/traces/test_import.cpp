#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/import.h"
#include "traces/safetensors.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

using nlohmann::json;

std::string dtype_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return "F16";
    case ElementType::kBfloat16:
      return "BF16";
    case ElementType::kFloat32:
      break;
  }
  return "F32";
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A safetensors file by hand: 8 bytes of length, JSON, data.
struct Safetensors {
  json header = json::object();
  std::string data;

  void add(const std::string& name, const std::string& dtype,
           const std::vector<std::int64_t>& shape, const std::string& bytes) {
    header[name] = {{"dtype", dtype},
                    {"shape", shape},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  void add(const std::string& name, const HostTensor& tensor) {
    add(name, dtype_of(tensor.type), {tensor.shape.begin(), tensor.shape.end()},
        text_of(tensor.data));
  }
  void add_integers(const std::string& name, const std::vector<std::int32_t>& values) {
    add(name, "I32", {static_cast<std::int64_t>(values.size())},
        {reinterpret_cast<const char*>(values.data()), values.size() * 4});
  }
  std::string bytes() const { return with_header(header.dump()); }
  std::string with_header(const std::string& text) const {
    const std::uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
  }
};

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

namespace {

/// A FlashInfer-Trace data set with one workload of two requests: 3 pages of 4 and 1 of 4 tokens.
struct FlashInferSet {
  static constexpr std::int64_t kPages = 6;
  static constexpr std::int64_t kPageSize = 4;
  HostTensor k = random_tensor(ElementType::kBfloat16, kPages* kPageSize, 2, 8, 1);
  HostTensor v = random_tensor(ElementType::kBfloat16, kPages* kPageSize, 2, 8, 2);
  HostTensor q = random_tensor(ElementType::kBfloat16, 2, 4, 8, 3);
  std::vector<std::int32_t> indptr{0, 3, 4};
  std::vector<std::int32_t> indices{5, 0, 2, 3};
  std::vector<std::int32_t> last{2, 3};
  json line;

  FlashInferSet() {
    const auto input = [](const char* key) {
      return json{{"type", "safetensors"}, {"path", "./blob/x.safetensors"}, {"tensor_key", key}};
    };
    line = {{"definition", "gqa_paged_decode_h4_kv2_d8_ps4"},
            {"solution", nullptr},
            {"workload",
             {{"uuid", "u"},
              {"axes", {{"batch_size", 2}, {"num_pages", 6}, {"len_indptr", 3}}},
              {"inputs",
               {{"q", input("q")},
                {"k_cache", input("k")},
                {"v_cache", input("v")},
                {"kv_indptr", input("kv_indptr")},
                {"kv_indices", input("kv_indices")},
                {"kv_last_page_len", input("last")},
                {"sm_scale", {{"type", "scalar"}, {"value", 0.125}}}}}}}};
  }

  json& input(const char* name) { return line["workload"]["inputs"][name]; }

  /// Writes the blob at the root and the workload two folders below; returns the latter's name.
  std::string write(const TemporaryFolder& folder) const {
    Safetensors file;
    file.add("q", "BF16", {2, 4, 8}, text_of(q.data));
    file.add("q16", "BF16", {2, 2, 16}, text_of(q.data));
    file.add("k", "BF16", {kPages, kPageSize, 2, 8}, text_of(k.data));
    file.add("v", "BF16", {kPages, kPageSize, 2, 8}, text_of(v.data));
    file.add("ckv", "BF16", {kPages, kPageSize, 16}, text_of(k.data));
    file.add("kpe", "BF16", {kPages, kPageSize, 16}, text_of(v.data));
    file.add_integers("kv_indptr", indptr);
    file.add_integers("kv_indices", indices);
    file.add_integers("last", last);
    const HostTensor scale = random_tensor(ElementType::kFloat32, 1, 1, 1, 9);
    file.add("scale", "F32", {}, text_of(scale.data));
    std::filesystem::create_directories(folder.file("blob"));
    std::filesystem::create_directories(folder.file("workloads/gqa_paged"));
    write_bytes(folder.file("blob/x.safetensors"), file.bytes());
    const std::string path = folder.file("workloads/gqa_paged/w.jsonl");
    write_bytes(path, line.dump() + "\n\n");
    return path;
  }

  std::string error(const ImportOptions& options = {false, false, {}, 0}) const {
    const TemporaryFolder folder;
    const std::string path = write(folder);
    return error_of([&] { import_trace(path, folder.file("out.h5"), options); });
  }
};

}  // namespace

TEST_CASE("a request of a FlashInfer-Trace workload is gathered from its pages") {
  const std::int64_t sequence = GENERATE(0, 1);
  const FlashInferSet set;
  const TemporaryFolder folder;
  const ImportResult result =
      import_trace(set.write(folder), folder.file("out.h5"), {false, false, {}, sequence});
  CHECK(result.notes.size() == 2);
  const TraceReader reader(folder.file("out.h5"));
  CHECK(reader.info().model == "gqa_paged_decode_h4_kv2_d8_ps4");
  CHECK(reader.info().decode_steps == 1);
  const std::vector<std::int64_t> pages =
      sequence == 0 ? std::vector<std::int64_t>{5, 0, 2} : std::vector<std::int64_t>{3};
  const std::int64_t tokens = sequence == 0 ? 10 : 3;
  REQUIRE(reader.info().tokens() == tokens);
  const TraceLayer layer = reader.read_layer(0);
  CHECK(layer.info.scale == 0.125);
  CHECK(layer.info.q_heads == 4);
  const std::vector<float> k = values_of(set.k);
  const std::vector<float> found = values_of(layer.k);
  const std::vector<float> found_v = values_of(layer.v);
  const std::vector<float> v = values_of(set.v);
  for (std::int64_t head = 0; head < 2; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t row = pages[static_cast<std::size_t>(token / 4)] * 4 + token % 4;
      for (std::int64_t j = 0; j < 8; ++j) {
        const auto to = static_cast<std::size_t>((head * tokens + token) * 8 + j);
        const auto from = static_cast<std::size_t>((row * 2 + head) * 8 + j);
        REQUIRE(found[to] == k[from]);
        REQUIRE(found_v[to] == v[from]);
      }
    }
  }
  const std::vector<float> q = values_of(set.q);
  const std::vector<float> expected(q.begin() + sequence * 32, q.begin() + (sequence + 1) * 32);
  CHECK(values_of(layer.q) == expected);
}

TEST_CASE("an MLA workload becomes a latent trace") {
  FlashInferSet set;
  set.line["definition"] = "mla_paged_decode_h4_ckv16_kpe16_ps4";
  json& inputs = set.line["workload"]["inputs"];
  const auto input = [](const char* key) {
    return json{{"type", "safetensors"}, {"path", "blob/x.safetensors"}, {"tensor_key", key}};
  };
  inputs["ckv_cache"] = input("ckv");
  inputs["kpe_cache"] = input("kpe");
  inputs["q_nope"] = input("q16");
  inputs["q_pe"] = input("q16");
  for (const char* name : {"q", "k_cache", "v_cache"}) inputs.erase(name);
  const TemporaryFolder folder;
  const std::string path = set.write(folder);
  // Queries of 16 columns: the batch of 2 x 4 x 8 read as 2 x 2 x 16.
  Safetensors file;
  file.add("ckv", "BF16", {6, 4, 16}, text_of(set.k.data));
  file.add("kpe", "BF16", {6, 4, 16}, text_of(set.v.data));
  file.add("q16", "BF16", {2, 2, 16}, text_of(set.q.data));
  file.add_integers("kv_indptr", set.indptr);
  file.add_integers("kv_indices", set.indices);
  file.add_integers("last", set.last);
  write_bytes(folder.file("blob/x.safetensors"), file.bytes());
  import_trace(path, folder.file("out.h5"), {false, false, 0, 1});
  const TraceLayer layer = TraceReader(folder.file("out.h5")).read_layer(0);
  CHECK(layer.info.layout == KvLayout::kLatent);
  CHECK(layer.info.head_dim == 32);
  CHECK(layer.info.v_head_dim == 16);
  const std::vector<float> rows = values_of(layer.k);
  const std::vector<float> ckv = values_of(set.k);
  const std::vector<float> kpe = values_of(set.v);
  for (std::size_t token = 0; token < 3; ++token) {
    for (std::size_t j = 0; j < 16; ++j) {
      REQUIRE(rows[token * 32 + j] == ckv[(12 + token) * 16 + j]);
      REQUIRE(rows[token * 32 + 16 + j] == kpe[(12 + token) * 16 + j]);
    }
  }
}

TEST_CASE("FlashInfer-Trace inputs without data, with strides or of wrong shape are refused") {
  const auto refused = [](auto&& change, const ImportOptions& options = {false, false, {}, 0}) {
    FlashInferSet set;
    change(set);
    return set.error(options);
  };
  CHECK_THAT(refused([](FlashInferSet& s) {
               s.input("k_cache") = {{"type", "random"}};
             }),
             ContainsSubstring("w.jsonl: workload 0: input 'k_cache' is of type random: the file "
                               "holds no data for it"));
  CHECK_THAT(refused([](FlashInferSet& s) {
               s.input("q")["strides"] = {64, 8, 1};
             }),
             ContainsSubstring("input 'q' has 'strides': only contiguous tensors"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.line["workload"]["inputs"].erase("sm_scale"); }),
             ContainsSubstring("input 'sm_scale' is missing"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.input("sm_scale")["value"] = -1; }),
             ContainsSubstring("sm_scale is -1, expected 1e-06 to 1000000"));
  CHECK_THAT(
      refused([](FlashInferSet& s) { s.input("q")["path"] = "none.safetensors"; }),
      ContainsSubstring("'none.safetensors' is not found in the folder of the file or above"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.input("q")["tensor_key"] = "queries"; }),
             ContainsSubstring("tensor 'queries' is missing"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.input("v_cache")["tensor_key"] = "ckv"; }),
             ContainsSubstring("input 'v_cache': shape is [6, 4, 16], expected 4 dimensions"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.input("q")["tensor_key"] = "q16"; }),
             ContainsSubstring("head sizes of queries and keys: 16 and 8 differ"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.line["workload"]["axes"]["batch_size"] = 3; }),
             ContainsSubstring("axis 'batch_size' is 3, expected 2 from the tensors"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.line["definition"] = "rmsnorm_h4096"; }),
             ContainsSubstring("definition is 'rmsnorm_h4096', expected gqa_paged_decode"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.line.erase("workload"); }),
             ContainsSubstring("expected an object with 'definition' and 'workload'"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.indices[1] = 6; }),
             ContainsSubstring("kv_indices: page 6, expected 0 to 5"));
  CHECK_THAT(refused([](FlashInferSet& s) {
               s.indptr = {0, 5, 4};
             }),
             ContainsSubstring("kv_indptr: expected 3 ascending values from 0 to 4"));
  CHECK_THAT(refused([](FlashInferSet& s) { s.last[0] = 5; }),
             ContainsSubstring("kv_last_page_len: 5 for sequence 0, expected 1 to 4"));
  CHECK_THAT(refused([](FlashInferSet& s) {
               s.indptr = {0, 0, 4};
             }),
             ContainsSubstring("sequence 0 has 0 cached tokens, expected at least 2"));
  CHECK_THAT(refused([](FlashInferSet&) {}, {}),
             ContainsSubstring("the batch holds 2 sequences, choose one of 0 to 1"));
  CHECK_THAT(refused([](FlashInferSet&) {}, {false, false, {}, 2}),
             ContainsSubstring("sequence 2 does not exist, expected 0 to 1"));
  CHECK_THAT(refused([](FlashInferSet&) {}, {false, false, 4, 0}),
             ContainsSubstring("workload 4 does not exist, expected 0 to 0"));
}

TEST_CASE("scalars may be tensors, and one of several workloads must be chosen") {
  FlashInferSet set;
  set.input("sm_scale") = {
      {"type", "safetensors"}, {"path", "blob/x.safetensors"}, {"tensor_key", "scale"}};
  const float scale = values_of(random_tensor(ElementType::kFloat32, 1, 1, 1, 9)).at(0);
  const TemporaryFolder folder;
  const std::string path = set.write(folder);
  const auto run = [&](const ImportOptions& options) {
    return error_of([&] { import_trace(path, folder.file("out.h5"), options); });
  };
  if (scale > 0) {
    CHECK(run({false, false, {}, 1}).empty());
    CHECK(TraceReader(folder.file("out.h5")).info().layers[0].scale == scale);
  } else {
    CHECK_THAT(run({false, false, {}, 1}), ContainsSubstring("sm_scale is -"));
  }
  write_bytes(path, read_bytes(path) + read_bytes(path));
  CHECK_THAT(run({true, false, {}, 1}),
             ContainsSubstring("holds 2 workloads, choose one of 0 to 1"));
  write_bytes(path, "{not json\n");
  CHECK_THAT(run({true, false, {}, 1}), ContainsSubstring("workload 0: no valid JSON"));
  write_bytes(path, "\n");
  CHECK_THAT(run({true, false, {}, 1}), ContainsSubstring("holds no workload"));
}

}  // namespace kvsim::testing
