#include "tests/sim/small_trace.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>

#include "core/float16.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

HostTensor random_tensor(std::array<std::int64_t, 3> shape, ElementType type, unsigned seed,
                         float spread) {
  std::mt19937 random(seed);  // the standard fixes its numbers, unlike those of distributions
  HostTensor tensor{type, shape, {}};
  const auto count = static_cast<std::size_t>(tensor.elements());
  tensor.data.resize(count * static_cast<std::size_t>(bytes_of(type)));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = spread * (static_cast<float>(random() % 20001) / 10000.0f - 1.0f);
    if (type == ElementType::kFloat32) {
      std::memcpy(tensor.data.data() + 4 * i, &value, 4);
    } else {
      const std::uint16_t bits =
          type == ElementType::kBfloat16 ? float_to_bf16(value) : float_to_fp16(value);
      std::memcpy(tensor.data.data() + 2 * i, &bits, 2);
    }
  }
  return tensor;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> next{0};
  path_ = std::filesystem::temp_directory_path() /
          ("kvsim_test_" + std::to_string(getpid()) + "_" + std::to_string(next++));
  std::filesystem::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TraceInfo SmallTrace::info() const {
  TraceInfo info;
  info.model = "test";
  info.source = "tests/sim";
  info.license = "none";
  info.prompt_tokens = prompt_tokens;
  info.decode_steps = decode_steps;
  info.rope = "applied";
  info.rope_theta = 10000;
  info.rope_scaling = "none";
  info.rotary_dim = head_dim;
  info.synthetic = true;
  return info;
}

TraceLayer SmallTrace::layer(int index) const {
  TraceLayer layer;
  LayerInfo& info = layer.info;
  info.layer = index;
  info.q_heads = q_heads;
  info.kv_heads = latent ? 1 : kv_heads;
  info.head_dim = head_dim;
  info.v_head_dim = latent ? head_dim / 2 : head_dim;
  info.scale = 0.25;
  info.window = index == 3 ? window_of_second : 0;
  info.logit_cap = logit_cap;
  info.layout = latent ? KvLayout::kLatent : KvLayout::kHeads;
  info.kv_type = type;
  const std::int64_t tokens = prompt_tokens + decode_steps;
  const unsigned base = seed * 1000 + static_cast<unsigned>(index) * 10;
  layer.k = random_tensor({info.kv_heads, tokens, head_dim}, type, base, 1.5f);
  if (!latent)
    layer.v = random_tensor({info.kv_heads, tokens, info.v_head_dim}, type, base + 1, 1.0f);
  layer.q = random_tensor({decode_steps, q_heads, head_dim}, type, base + 2, 2.0f);
  if (probes > 0) layer.probe = random_tensor({probes, q_heads, head_dim}, type, base + 3, 2.0f);
  if (learned_by_second && index == 3) {
    layer.learned["eta_threshold_weight"] =
        random_tensor({1, std::int64_t{q_heads} * head_dim, q_heads}, type, base + 4, 0.1f);
    layer.learned["eta_threshold_bias"] = random_tensor({1, 1, q_heads}, type, base + 5, 1.0f);
  }
  if (sinks) layer.sink_logits.assign(static_cast<std::size_t>(q_heads), 0.5f);
  return layer;
}

void SmallTrace::write(const std::string& path) const {
  TraceWriter writer(path, info(), {.force = true, .compress = false});
  writer.write_layer(layer(1));
  writer.write_layer(layer(3));
  writer.commit();
}

}  // namespace kvsim::testing
