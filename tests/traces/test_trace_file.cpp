#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

bool same(const HostTensor& a, const HostTensor& b) {
  return a.type == b.type && a.shape == b.shape && a.data == b.data;
}

bool same(const std::optional<HostTensor>& a, const std::optional<HostTensor>& b) {
  return a.has_value() == b.has_value() && (!a || same(*a, *b));
}

void check_same(const TraceLayer& found, const TraceLayer& expected) {
  CHECK(found.info.layer == expected.info.layer);
  CHECK(found.info.q_heads == expected.info.q_heads);
  CHECK(found.info.kv_heads == expected.info.kv_heads);
  CHECK(found.info.head_dim == expected.info.head_dim);
  CHECK(found.info.v_head_dim == expected.info.v_head_dim);
  CHECK(found.info.scale == expected.info.scale);
  CHECK(found.info.window == expected.info.window);
  CHECK(found.info.logit_cap == expected.info.logit_cap);
  CHECK(found.info.layout == expected.info.layout);
  CHECK(found.info.kv_type == expected.info.kv_type);
  CHECK(same(found.k, expected.k));
  CHECK(found.v.data == expected.v.data);
  CHECK(same(found.q, expected.q));
  CHECK(same(found.output, expected.output));
  CHECK(same(found.probe, expected.probe));
  CHECK(same(found.attention_sum, expected.attention_sum));
  CHECK(found.sink_logits == expected.sink_logits);
  REQUIRE(found.learned.size() == 2);
  CHECK(same(found.learned.at("weight"), expected.learned.at("weight")));
  CHECK(same(found.learned.at("bias"), expected.learned.at("bias")));
  CHECK(found.prepared == expected.prepared);
}

SmallShape shape_of(ElementType type, bool latent) {
  SmallShape shape;
  shape.type = type;
  shape.latent = latent;
  if (latent) shape.kv_heads = 1;
  return shape;
}

void write_small(const std::string& path, const SmallShape& shape, bool compress) {
  TraceWriter writer(path, small_info(shape), {false, compress});
  writer.write_layer(small_layer(shape, 0));
  writer.write_layer(small_layer(shape, 12));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.prompt_tokens + 3));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(7 * i);
  writer.write_tokens(tokens);
  writer.commit();
}

}  // namespace

TEST_CASE("a trace comes back as it was written, in every type and layout") {
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16);
  const bool latent = GENERATE(false, true);
  const bool compress = GENERATE(false, true);
  SmallShape shape = shape_of(type, latent);
  shape.prompt_tokens = compress ? 2000 : 40;  // several chunks
  const TemporaryFolder folder;
  const std::string path = folder.file("trace.h5");
  write_small(path, shape, compress);

  const TraceReader reader(path);
  const TraceInfo& info = reader.info();
  CHECK(info.path == path);
  CHECK(info.model == "Tiny-Modèl");
  CHECK(info.license == "CC0-1.0");
  CHECK(info.prompt_tokens == shape.prompt_tokens);
  CHECK(info.decode_steps == 3);
  CHECK(info.rope == "applied");
  CHECK(info.rope_theta == 1e5);
  CHECK(info.rotary_dim == 16);
  CHECK_FALSE(info.synthetic);
  REQUIRE(info.layers.size() == 2);
  check_same(reader.read_layer(0), small_layer(shape, 0));
  check_same(reader.read_layer(1), small_layer(shape, 12));
  CHECK(reader.read_tokens().at(5) == 35);
  const hdf5::File file = hdf5::File::open(path);
  CHECK(file.open_dataset("/layers/12/parameters/weight").extent() == hdf5::Extent{3, 4});
  CHECK(file.open_dataset("/layers/12/parameters/bias").extent() == hdf5::Extent{4});
  CHECK(file.string_attribute("/layers/12/state/method", "settings") == "size=3,words=none");
  const hdf5::Dataset numbers = file.open_dataset("/layers/12/state/method/0/numbers");
  CHECK(numbers.read<std::int32_t>() == std::vector<std::int32_t>{12, 0, -5, 0x7fffffff});
}

TEST_CASE("layers are in ascending order whatever their names' order") {
  const TemporaryFolder folder;
  const SmallShape shape;
  TraceWriter writer(folder.file("t.h5"), small_info(shape), {});
  for (const int layer : {10, 2, 9, 100}) writer.write_layer(small_layer(shape, layer));
  writer.commit();
  const TraceReader reader(folder.file("t.h5"));
  std::vector<int> numbers;
  for (const LayerInfo& layer : reader.info().layers) numbers.push_back(layer.layer);
  CHECK(numbers == std::vector<int>{2, 9, 10, 100});
  CHECK(reader.read_tokens().empty());
}

TEST_CASE("a layer written row by row equals one written whole") {
  const TemporaryFolder folder;
  const SmallShape shape;
  const TraceLayer layer = small_layer(shape, 3);
  TraceWriter writer(folder.file("t.h5"), small_info(shape), {});
  {
    TraceLayerWriter parts = writer.begin_layer(layer.info);
    for (int head = 0; head < 2; ++head) {
      for (std::int64_t row = 0; row < 43; row += 10) {
        const std::int64_t end = std::min<std::int64_t>(row + 10, 43);
        parts.write_keys(head, row, layer.keys(head).slice(row, end));
        parts.write_values(head, row, layer.values(head).slice(row, end));
      }
    }
    parts.write_tensor("q", layer.q);
  }
  writer.commit();
  const TraceLayer found = TraceReader(folder.file("t.h5")).read_layer(0);
  CHECK(same(found.k, layer.k));
  CHECK(same(found.v, layer.v));
  CHECK(same(found.q, layer.q));
}

TEST_CASE("rows with a stride are packed when written") {
  const TemporaryFolder folder;
  SmallShape shape = shape_of(ElementType::kFloat32, true);
  const TraceLayer latent = small_layer(shape, 0);
  shape.latent = false;
  TraceLayer heads = small_layer(shape, 0);
  TraceWriter writer(folder.file("t.h5"), small_info(shape), {});
  {
    TraceLayerWriter parts = writer.begin_layer(heads.info);
    parts.write_keys(0, 0, latent.keys(0));
    parts.write_values(0, 0, latent.values(0));  // 8 of 16 columns
    parts.write_tensor("q", heads.q);
  }
  writer.commit();
  const TraceLayer found = TraceReader(folder.file("t.h5")).read_layer(0);
  std::vector<float> expected(43 * 8);
  load_rows(latent.values(0), 0, 43, 8, expected.data());
  CHECK(values_of(found.v) == expected);
}

TEST_CASE("root attributes are defaults for layers") {
  const TemporaryFolder folder;
  RawTrace raw;
  for (const char* layer : {"/layers/0", "/layers/7"}) raw.attributes[layer].erase("kv_heads");
  raw.attributes["/"]["kv_heads"] = std::int64_t{2};
  raw.attributes["/"]["window"] = std::int64_t{5};
  raw.attributes["/layers/7"]["window"] = std::int64_t{9};
  raw.write(folder.file("t.h5"));
  const TraceReader reader(folder.file("t.h5"));
  CHECK(reader.info().layers.at(0).kv_heads == 2);
  CHECK(reader.info().layers.at(0).window == 5);
  CHECK(reader.info().layers.at(1).window == 9);
  CHECK(reader.info().layers.at(1).v_head_dim == 8);
}

TEST_CASE("float64 sums are converted, whole numbers are taken for floats") {
  const TemporaryFolder folder;
  RawTrace raw;
  raw.attributes["/layers/0"]["scale"] = std::int64_t{1};
  raw.datasets["/layers/0/attention_sum"] = {hdf5::NumberType::kFloat64, {4, 20}, {0.5f}};
  raw.datasets["/layers/0/sink_logits"] = {hdf5::NumberType::kFloat64, {4}, {}};
  raw.write(folder.file("t.h5"));
  const TraceLayer layer = TraceReader(folder.file("t.h5")).read_layer(0);
  CHECK(layer.info.scale == 1.0);
  REQUIRE(layer.attention_sum.has_value());
  CHECK(layer.attention_sum->type == ElementType::kFloat32);
  CHECK(layer.attention_sum->shape == std::array<std::int64_t, 3>{1, 4, 20});
  CHECK(layer.sink_logits.size() == 4);
}

TEST_CASE("the same trace gives the same bytes") {
  const TemporaryFolder folder;
  const bool compress = GENERATE(false, true);
  write_small(folder.file("a.h5"), SmallShape{}, compress);
  write_small(folder.file("b.h5"), SmallShape{}, compress);
  CHECK(read_bytes(folder.file("a.h5")) == read_bytes(folder.file("b.h5")));
}

TEST_CASE("compression makes a trace of smooth data smaller") {
  const TemporaryFolder folder;
  SmallShape shape;
  shape.prompt_tokens = 4000;
  write_small(folder.file("a.h5"), shape, false);
  write_small(folder.file("b.h5"), shape, true);
  CHECK(read_bytes(folder.file("b.h5")).size() * 10 < read_bytes(folder.file("a.h5")).size() * 9);
}

TEST_CASE("an output trace appears whole or not at all") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.h5");
  const SmallShape shape;
  {
    TraceWriter writer(path, small_info(shape), {});
    writer.write_layer(small_layer(shape, 0));
    CHECK_FALSE(std::filesystem::exists(path));
  }
  CHECK(folder.files() == 0);
  write_small(path, shape, false);
  CHECK_THAT(error_of([&] { TraceWriter(path, small_info(shape), {}); }),
             ContainsSubstring("--force"));
  TraceWriter writer(path, small_info(shape), {true, false});
  TraceLayer bad = small_layer(shape, 0);
  std::memset(bad.v.data.data() + 30, 0xff, 4);
  const std::string error = error_of([&] { writer.write_layer(bad); });
  CHECK_THAT(error, ContainsSubstring(path + ": /layers/0/v: element 15"));
  CHECK(TraceReader(path).info().layers.size() == 2);  // the old file is untouched
}

TEST_CASE("h5py reads our traces without our code") {
  if (std::system("python3 -c 'import h5py' 2>/dev/null") != 0) return;
  const TemporaryFolder folder;
  RawTrace raw;
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16);
  SmallShape shape = shape_of(type, false);
  TraceLayer layer = small_layer(shape, 4);
  const std::vector<float> one{1.0f, -2.5f, 0.0f};
  store_values(one.data(), 3, type, layer.k.data.data());
  TraceWriter writer(folder.file("t.h5"), small_info(shape), {false, GENERATE(false, true)});
  writer.write_layer(layer);
  writer.commit();
  const std::string script =
      "import h5py; f = h5py.File('" + folder.file("t.h5") +
      "'); g = f['layers/4']; assert f.attrs['format'] == 'kvsim-trace', f.attrs['format']; "
      "assert f.attrs['version'] == 1 and g.attrs['scale'] == 0.3; "
      "assert list(g['k'][0, 0, :3]) == [1.0, -2.5, 0.0], g['k'][0, 0, :3]; "
      "assert g['k'].shape == (2, 43, 16) and f.attrs['model'] == 'Tiny-Mod\\u00e8l'";
  CHECK(std::system(("python3 -c \"" + script + "\"").c_str()) == 0);
}

}  // namespace kvsim::testing
