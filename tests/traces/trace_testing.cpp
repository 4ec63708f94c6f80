#include "tests/traces/trace_testing.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <sstream>

#include "core/error.h"
#include "core/philox.h"
#include "traces/gaussian.h"

namespace kvsim::testing {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> count{0};
  path_ = fs::temp_directory_path() / fmt::format("kvsim_test_{}_{}", ::getpid(), count++);
  fs::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::size_t TemporaryFolder::files() const {
  const fs::directory_iterator begin(path_);
  return static_cast<std::size_t>(std::distance(begin, fs::directory_iterator()));
}

std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const RuntimeError& error) {
    return error.what();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

HostTensor random_tensor(ElementType type, std::int64_t a, std::int64_t b, std::int64_t c,
                         std::uint64_t seed) {
  HostTensor tensor;
  tensor.type = type;
  tensor.shape = {a, b, c};
  RandomStream stream;
  stream.seed = seed;
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  fill_gaussian(stream, 0, values);
  tensor.data.resize(values.size() * static_cast<std::size_t>(bytes_of(type)));
  store_values(values.data(), tensor.elements(), type, tensor.data.data());
  return tensor;
}

std::vector<float> values_of(const HostTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  const RowsView view{tensor.data.data(), tensor.type, 1, static_cast<int>(tensor.elements()),
                      tensor.elements()};
  load_rows(view, 0, 1, view.dim, values.data());
  return values;
}

TraceInfo small_info(const SmallShape& shape) {
  TraceInfo info;
  info.model = "Tiny-Modèl";  // UTF-8 must survive
  info.source = "a test";
  info.license = "CC0-1.0";
  info.prompt_tokens = shape.prompt_tokens;
  info.decode_steps = shape.decode_steps;
  info.rope = "applied";
  info.rope_theta = 1e5;
  info.rope_scaling = "none";
  info.rotary_dim = shape.head_dim;
  return info;
}

TraceLayer small_layer(const SmallShape& shape, int number) {
  const auto seed = static_cast<std::uint64_t>(number) * 100;
  const std::int64_t tokens = shape.prompt_tokens + shape.decode_steps;
  TraceLayer layer;
  layer.info = {number, shape.q_heads, shape.kv_heads,   shape.head_dim, shape.v_head_dim, 0.3,
                17,     30.0,          KvLayout::kHeads, shape.type};
  layer.k = random_tensor(shape.type, shape.kv_heads, tokens, shape.head_dim, seed + 1);
  layer.v = random_tensor(shape.type, shape.kv_heads, tokens, shape.v_head_dim, seed + 2);
  if (shape.latent) {
    layer.info.layout = KvLayout::kLatent;
    layer.v = HostTensor{};
  }
  layer.q = random_tensor(shape.type, shape.decode_steps, shape.q_heads, shape.head_dim, seed + 3);
  layer.output = random_tensor(ElementType::kFloat32, shape.decode_steps, shape.q_heads,
                               shape.v_head_dim, seed + 4);
  layer.probe = random_tensor(shape.type, 5, shape.q_heads, shape.head_dim, seed + 5);
  layer.attention_sum =
      random_tensor(ElementType::kFloat32, 1, shape.q_heads, shape.prompt_tokens, seed + 6);
  for (std::size_t i = 3; i < layer.attention_sum->data.size(); i += 4) {
    layer.attention_sum->data[i] &= std::byte{0x7f};  // the sign: sums are never negative
  }
  layer.sink_logits.resize(static_cast<std::size_t>(shape.q_heads));
  std::iota(layer.sink_logits.begin(), layer.sink_logits.end(), -2.5f);
  layer.learned["weight"] = random_tensor(shape.type, 1, 3, 4, seed + 7);
  layer.learned["bias"] = random_tensor(ElementType::kFloat32, 1, 1, 4, seed + 8);
  PreparedState& state = layer.prepared["method"];
  state.settings = "size=3,words=none";
  for (int head = 0; head < shape.kv_heads; ++head) {
    state.heads.push_back({{"empty", {}}, {"numbers", {number, head, -5, 0x7fffffff}}});
    for (int i = 0; i < 5000; ++i)
      state.heads.back()["many"].push_back(i * head);  // a chunk's worth
  }
  return layer;
}

RawTrace::RawTrace() {
  attributes["/"] = {{"format", std::string("kvsim-trace")}, {"version", std::int64_t{1}},
                     {"model", std::string("raw")},          {"prompt_tokens", std::int64_t{20}},
                     {"decode_steps", std::int64_t{2}},      {"rope", std::string("none")}};
  datasets["/tokens"] = {hdf5::NumberType::kInt32, {22}, {}};
  for (const std::string layer : {"/layers/0", "/layers/7"}) {
    attributes[layer] = {{"q_heads", std::int64_t{4}},
                         {"kv_heads", std::int64_t{2}},
                         {"head_dim", std::int64_t{8}},
                         {"scale", 0.35}};
    datasets[layer + "/k"] = {hdf5::NumberType::kFloat32, {2, 22, 8}, {}};
    datasets[layer + "/v"] = {hdf5::NumberType::kFloat32, {2, 22, 8}, {}};
    datasets[layer + "/q"] = {hdf5::NumberType::kFloat32, {2, 4, 8}, {}};
  }
}

void RawTrace::write(const std::string& path) const {
  hdf5::File file = hdf5::File::create(path, path);
  file.create_group("/layers");
  for (const auto& [object, values] : attributes) {
    if (!file.exists(object)) file.create_group(object);
    for (const auto& [name, value] : values) {
      const std::string& owner = object;
      const std::string& attribute = name;
      std::visit([&](const auto& v) { file.write_attribute(owner, attribute, v); }, value);
    }
  }
  for (const auto& [name, data] : datasets) {
    hdf5::Dataset dataset = file.create_dataset(name, data.type, data.extent);
    std::vector<float> values = data.values;
    values.resize(static_cast<std::size_t>(hdf5::elements_of(data.extent)), 0.0f);
    if (data.values.empty()) fill_gaussian(RandomStream{}, 0, values);
    if (data.type == hdf5::NumberType::kFloat32)
      dataset.write_raw(std::as_bytes(std::span(values)));
    if (data.type == hdf5::NumberType::kFloat64 || data.type == hdf5::NumberType::kInt64) {
      const std::vector<double> wide(values.begin(), values.end());
      dataset.write_raw(std::as_bytes(std::span(wide)));
    }
    if (data.type == hdf5::NumberType::kInt32) {
      std::vector<std::int32_t> whole(values.size());
      std::iota(whole.begin(), whole.end(), data.values.empty() ? 0 : -1);
      dataset.write_raw(std::as_bytes(std::span(whole)));
    }
    if (data.type == hdf5::NumberType::kBfloat16 || data.type == hdf5::NumberType::kFloat16) {
      const std::vector<std::uint16_t> halves(values.size(), 0x3c01);
      dataset.write_raw(std::as_bytes(std::span(halves)));
    }
  }
  file.close();
}

}  // namespace kvsim::testing
