#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/safetensors_testing.h"
#include "tests/traces/trace_testing.h"
#include "traces/import.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

using nlohmann::json;

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
