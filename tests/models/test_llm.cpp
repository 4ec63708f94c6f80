#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/llm/llm.h"
#include "models/presets.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;

/// A config.json that is gone when the test is.
class ConfigFile {
 public:
  ConfigFile(const std::string& name, const std::string& text)
      : folder_(std::filesystem::temp_directory_path() / ("kvsim_config_" + name)) {
    std::filesystem::create_directories(folder_);
    std::ofstream(path()) << text;
  }
  ~ConfigFile() { std::filesystem::remove_all(folder_); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  std::string path() const { return (folder_ / "config.json").string(); }

 private:
  std::filesystem::path folder_;
};

const char* const kLlama = R"({
  "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": false,
  "attention_bias": false, "mlp_bias": false, "torch_dtype": "bfloat16"})";

const char* const kQwen = R"({
  "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
  "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
  "vocab_size": 152064, "max_position_embeddings": 32768, "tie_word_embeddings": false,
  "sliding_window": 131072, "use_sliding_window": false, "max_window_layers": 28,
  "torch_dtype": "bfloat16"})";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

Machine machine_with(const Estimate& gb_per_s) {
  Machine machine;
  machine.memory.stream.gb_per_s = gb_per_s;
  return machine;
}

void check_same(const Llm& a, const Llm& b) {
  CHECK(a.layers == b.layers);
  CHECK(a.hidden == b.hidden);
  CHECK(a.q_heads == b.q_heads);
  CHECK(a.kv_heads == b.kv_heads);
  CHECK(a.head_dim == b.head_dim);
  CHECK(a.scale == b.scale);
  CHECK(a.windows == b.windows);
  CHECK(a.max_context == b.max_context);
  CHECK(a.stored_weight_bytes == b.stored_weight_bytes);
  CHECK(a.streamed_weight_bytes == b.streamed_weight_bytes);
  CHECK(a.kv_bytes_per_token == b.kv_bytes_per_token);
}

TEST_CASE("Llama 3.1 8B: 8.03 B parameters, 15.0 GB streamed") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  CHECK(llm.stored_weight_bytes == 2 * 8030261248.0);
  CHECK(llm.streamed_weight_bytes == Approx(15.0e9).epsilon(0.001));
  CHECK(llm.stored_weight_bytes - llm.streamed_weight_bytes == 2 * 128256.0 * 4096);
  CHECK(llm.kv_bytes_per_token == 131072);
  CHECK(6 * 30000 * llm.kv_bytes_per_token == Approx(23.6e9).epsilon(0.001));  // SANTA table 3
  CHECK(llm.v_head_dim == 128);
  CHECK(llm.scale == Approx(0.0883883).epsilon(1e-5));
  CHECK(llm.windows == std::vector<std::int64_t>(32, 0));
}

TEST_CASE("Qwen2.5 7B has biases of q, k and v: 7.62 B parameters") {
  const Llm llm = Presets().llm("qwen2.5-7b");
  CHECK(llm.stored_weight_bytes == 2 * 7615616512.0);
  CHECK(llm.kv_bytes_per_token == 28 * 4 * 128 * 2 * 2);
}

TEST_CASE("SmolLM2 135M ties its tables: 134.5 M parameters, all streamed") {
  const Llm llm = Presets().llm("smollm2-135m");
  CHECK(llm.stored_weight_bytes == 2 * 134515008.0);
  CHECK(llm.streamed_weight_bytes == llm.stored_weight_bytes);
}

TEST_CASE("every LLM preset loads") {
  const Presets presets;
  for (const std::string& name : presets.names("llms")) {
    INFO(name);
    const Llm llm = presets.llm(name);
    CHECK(llm.name == name);
    CHECK(llm.windows.size() == static_cast<std::size_t>(llm.layers));
    CHECK(llm.streamed_weight_bytes <= llm.stored_weight_bytes);
  }
  CHECK_THROWS_AS(presets.llm("gpt-5"), UsageError);
}

TEST_CASE("a config.json gives what the preset gives") {
  check_same(llm_from_config(ConfigFile("llama", kLlama).path()), Presets().llm("llama-3.1-8b"));
  check_same(llm_from_config(ConfigFile("qwen", kQwen).path()), Presets().llm("qwen2.5-7b"));
}

TEST_CASE("float32 weights are taken as bfloat16, with a note") {
  const ConfigFile file("float32", with(kLlama, "bfloat16", "float32"));
  const Llm llm = llm_from_config(file.path());
  CHECK(llm.weight_bytes_per_element == 2);
  REQUIRE(llm.notes.size() == 1);
  CHECK(llm.notes[0].find("float32, taken as bfloat16") != std::string::npos);
  const ConfigFile fp8("fp8", with(kLlama, "bfloat16", "float8_e4m3fn"));
  CHECK_THROWS_WITH(llm_from_config(fp8.path()), ContainsSubstring("torch_dtype"));
}

TEST_CASE("defaults: head size, KV heads, tied tables") {
  const ConfigFile own_head("head_dim",
                            with(kLlama, "\"vocab_size\"", "\"head_dim\": 64, \"vocab_size\""));
  CHECK(llm_from_config(own_head.path()).head_dim == 64);
  const ConfigFile no_gqa("mha", with(kLlama, "\"num_key_value_heads\": 8,", ""));
  CHECK(llm_from_config(no_gqa.path()).kv_heads == 32);
  const ConfigFile tied(
      "tied", with(kLlama, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"));
  const Llm llm = llm_from_config(tied.path());
  CHECK(llm.stored_weight_bytes == llm.streamed_weight_bytes);
}

TEST_CASE("windows by layer") {
  const std::string used =
      with(kQwen, "\"use_sliding_window\": false", "\"use_sliding_window\": true");
  const ConfigFile from_layer("from_layer",
                              with(used, "\"max_window_layers\": 28", "\"max_window_layers\": 21"));
  const Llm qwen = llm_from_config(from_layer.path());
  CHECK(qwen.windows[20] == 0);
  CHECK(qwen.windows[21] == 131072);

  const std::string mistral = with(kLlama, "\"llama\"", "\"mistral\"");
  const ConfigFile all("all",
                       with(mistral, "\"vocab_size\"", "\"sliding_window\": 4096, \"vocab_size\""));
  CHECK(llm_from_config(all.path()).windows == std::vector<std::int64_t>(32, 4096));
  const ConfigFile none(
      "none", with(mistral, "\"vocab_size\"", "\"sliding_window\": null, \"vocab_size\""));
  CHECK(llm_from_config(none.path()).windows == std::vector<std::int64_t>(32, 0));

  const std::string two =
      with(with(kLlama, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 2"), "\"vocab_size\"",
           "\"sliding_window\": 512, \"layer_types\": "
           "[\"sliding_attention\", \"full_attention\"], \"vocab_size\"");
  CHECK(llm_from_config(ConfigFile("types", two).path()).windows ==
        std::vector<std::int64_t>{512, 0});
  const ConfigFile wrong("wrong_types", with(two, "full_attention", "linear_attention"));
  CHECK_THROWS_WITH(llm_from_config(wrong.path()), ContainsSubstring("layer_types"));
}

TEST_CASE("Gemma alternates windows and scales by its own constant") {
  std::string text = with(kLlama, "\"llama\"", "\"gemma2\"");
  text = with(text, "\"vocab_size\"",
              "\"query_pre_attn_scalar\": 256, \"sliding_window\": 4096, \"vocab_size\"");
  const Llm llm = llm_from_config(ConfigFile("gemma2", text).path());
  CHECK(llm.scale == 1.0 / 16);
  CHECK(llm.windows[0] == 4096);
  CHECK(llm.windows[1] == 0);
}

TEST_CASE("what is not modelled is refused, never guessed") {
  const auto refuse = [](const char* name, const std::string& text, const std::string& says) {
    const ConfigFile file(name, text);
    CHECK_THROWS_AS(llm_from_config(file.path()), RuntimeError);
    CHECK_THROWS_WITH(llm_from_config(file.path()),
                      ContainsSubstring(file.path()) && ContainsSubstring(says));
  };
  const auto plus = [](const std::string& key) {
    return with(kLlama, "\"vocab_size\"", key + ", \"vocab_size\"");
  };
  refuse("moe", plus("\"num_local_experts\": 8"), "not supported yet");
  refuse("mla", plus("\"kv_lora_rank\": 512"), "not supported yet");
  refuse("quantised", plus("\"quantization_config\": {}"), "not supported yet");
  refuse("unknown", with(kLlama, "\"llama\"", "\"mamba\""), "'mamba' is not supported yet");
  refuse("missing", with(kLlama, "\"hidden_size\": 4096,", ""), "hidden_size");
  refuse("text", with(kLlama, "\"hidden_size\": 4096", "\"hidden_size\": \"big\""), "hidden_size");
  refuse("no_group", with(kLlama, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5"), "5");
  refuse("zero", with(kLlama, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 0"), "above 0");
  refuse("broken", "{\"model_type\": ", "JSON");
  CHECK_THROWS_AS(llm_from_config("/nowhere/config.json"), RuntimeError);
}

TEST_CASE("Amdahl's law of the SANTA paper") {
  CHECK(amdahl_speedup(15, 24, 1.5) == Approx(1.258).epsilon(0.0005));
  CHECK(amdahl_speedup(15, 24, 1) == 1);
  CHECK(amdahl_speedup(15, 0, 7) == 1);
  CHECK(amdahl_speedup(0, 24, 7) == Approx(7));
  CHECK_THROWS_AS(amdahl_speedup(0, 0, 2), UsageError);
  CHECK_THROWS_AS(amdahl_speedup(1, 1, 0), UsageError);
}

TEST_CASE("the SANTA paper's decode step: 49.4 ms dense, 1.25x") {
  // RTX 6000 Ada, batch 6, 30k tokens: 29.6 ms of attention, weights at 758 GB/s.
  const Llm llm = Presets().llm("llama-3.1-8b");
  const Machine machine = machine_with(exactly(758));
  const std::array<LayersAndTime, 1> dense{{{32, exactly(29600.0 / 32)}}};
  const std::array<LayersAndTime, 1> method{{{32, exactly(29600.0 / 32 / 1.5)}}};
  const DecodeStep step = decode_step(llm, machine, 6, dense, method);
  CHECK(step.weights_us.value == Approx(19800).epsilon(0.002));
  CHECK(step.dense_us.value == Approx(49420).epsilon(0.002));
  CHECK(step.method_us.value == Approx(39540).epsilon(0.002));
  CHECK(step.speedup.value == Approx(1.25).epsilon(0.002));
  CHECK(step.attention_share == Approx(0.599).epsilon(0.002));
}

TEST_CASE("products start one after the other, and a large batch is bound by arithmetic") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  const std::array<LayersAndTime, 1> layers{{{32, exactly(10)}}};
  Machine machine = machine_with(exactly(4600));
  const double stream = decode_step(llm, machine, 1, layers, layers).weights_us.value;
  CHECK(stream == Approx(3263).epsilon(0.001));
  machine.memory.stream.ramp_us = exactly(9);  // an attention kernel's, not a product's
  machine.memory.read_ramp_us = exactly(1.5);
  machine.boundary_us[static_cast<std::size_t>(Boundary::kKernelLaunch)] = exactly(0.5);
  const Estimate started = decode_step(llm, machine, 1, layers, layers).weights_us;
  CHECK(started.value == Approx(stream + 2 * (4 * 32 + 1)));
  CHECK(started.low == Approx(stream));
  const std::size_t score = static_cast<std::size_t>(Phase::kScore);
  machine.ops[static_cast<std::size_t>(Op::kMultiply)][score].per_us = exactly(700e6);
  machine.ops[static_cast<std::size_t>(Op::kAdd)][score].per_us = exactly(700e6);
  CHECK(decode_step(llm, machine, 8, layers, layers).weights_us.value == started.value);
  CHECK(decode_step(llm, machine, 512, layers, layers).weights_us.value ==
        Approx(512 * llm.streamed_weight_bytes / 2 * 2 / 700e6 + 258));
}

TEST_CASE("a matrix product starts as the measured read kernel does: 2.0 us on an H200") {
  const Machine h200 = Presets().gpu("h200_sxm");
  const double start =
      h200.boundary(Boundary::kKernelLaunch).value + h200.memory.read_ramp_us.value;
  CHECK(start == Approx(2.0));
  const Llm llm = Presets().llm("llama-3.1-8b");
  const std::array<LayersAndTime, 1> layers{{{32, exactly(10)}}};
  CHECK(decode_step(llm, h200, 1, layers, layers).weights_us.value ==
        Approx(llm.streamed_weight_bytes / 4.6e6 + 2.0 * (4 * 32 + 1)));
}

TEST_CASE("weights and cache must fit, and the cache's type counts") {
  const Llm llama = Presets().llm("llama-3.1-8b");
  const MemorySystem memory = Presets().gpu("h200_sxm").memory;
  constexpr KvFormat kBf16{16, 0, 0};
  constexpr KvFormat kFp8{8, 0, 0};
  const MemoryNeed one = memory_need(llama, memory, kBf16, {}, 131072, 1);
  CHECK(one.weight_bytes == llama.stored_weight_bytes);
  CHECK(one.kv_bytes == 131072.0 * llama.kv_bytes_per_token);
  CHECK(one.capacity_bytes == 141e9);
  CHECK(one.fits());
  CHECK_FALSE(memory_need(llama, memory, kBf16, {}, 131072, 8).fits());
  CHECK(memory_need(llama, memory, kFp8, {}, 131072, 8).fits());
  CHECK(memory_need(llama, memory, kFp8, {}, 131072, 8).kv_bytes == 4 * one.kv_bytes);
  // A paged cache is filled with whole pages, a window keeps its rows only.
  CHECK(memory_need(llama, memory, kBf16, {LayoutKind::kPaged, 16}, 17, 1).kv_bytes ==
        32 * llama.kv_bytes_per_token);
  Llm windowed = llama;
  for (int layer = 0; layer < 16; ++layer) windowed.windows[static_cast<std::size_t>(layer)] = 1024;
  CHECK(memory_need(windowed, memory, kBf16, {}, 3072, 1).kv_bytes ==
        (1024 + 3072) / 2 * llama.kv_bytes_per_token);
}

TEST_CASE("GPUs share heads, weights and cache; KV heads beyond theirs are replicated") {
  const Llm llama = Presets().llm("llama-3.1-8b");  // 32 / 8 heads
  const Llm half = share_of_llm(llama, 2);
  CHECK(half.q_heads == 16);
  CHECK(half.kv_heads == 4);
  CHECK(half.streamed_weight_bytes == llama.streamed_weight_bytes / 2);
  CHECK(half.kv_bytes_per_token == llama.kv_bytes_per_token / 2);
  const Llm sixteenth = share_of_llm(llama, 16);
  CHECK(sixteenth.kv_heads == 1);
  CHECK(sixteenth.kv_bytes_per_token == llama.kv_bytes_per_token / 8);
  // Half a KV head more than its share, K and V, in 32 layers.
  CHECK(sixteenth.stored_weight_bytes ==
        llama.stored_weight_bytes / 16 + 0.5 * 32 * 4096 * 256 * 2);
  check_same(share_of_llm(llama, 1), llama);
  CHECK_THROWS_WITH(share_of_llm(llama, 3), ContainsSubstring("cannot be dealt out to 3 GPUs"));
  CHECK_THROWS_AS(share_of_llm(Presets().llm("qwen2.5-7b"), 8), UsageError);  // 28 query heads
}

TEST_CASE("every layer of a shared model waits for two all-reduces") {
  const Llm llama = Presets().llm("llama-3.1-8b");
  const Machine h200 = Presets().gpu("h200_sxm");
  const std::array<LayersAndTime, 1> layers{{{32, exactly(10)}}};
  CHECK(decode_step(llama, h200, 1, layers, layers).all_reduce_us.value == 0);
  const DecodeStep step = decode_step(share_of_llm(llama, 4), h200, 16, layers, layers);
  const double moved = 16 * 4096 * 2 * 1.5 / 414e3;
  CHECK(step.all_reduce_us.value == Approx(2 * 32 * (6.6 + 6 * 0.6 + moved)));
  CHECK(step.dense_us.value == Approx(step.weights_us.value + step.all_reduce_us.value + 320));
  CHECK_THROWS_WITH(decode_step(share_of_llm(llama, 2), Presets().gpu("l40s"), 1, layers, layers),
                    ContainsSubstring("preset l40s has no [link]"));
}

TEST_CASE("dense against itself is exactly 1, whatever the intervals") {
  const Llm llm = Presets().llm("smollm2-135m");
  const Machine machine = machine_with({4600, 4400, 4700, Source::kMeasured});
  const std::array<LayersAndTime, 2> layers{
      {{10, {11.1, 9.3, 13.7, Source::kMeasured}}, {20, {7.7, 7.1, 9.9, Source::kDerived}}}};
  const DecodeStep step = decode_step(llm, machine, 1, layers, layers);
  CHECK(step.speedup.low == 1);
  CHECK(step.speedup.value == 1);
  CHECK(step.speedup.high == 1);
  CHECK(step.speedup.source == Source::kDerived);
}

TEST_CASE("speedups stay between 1 and the attention's own, intervals around the value") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  const Machine machine = machine_with({4600, 4400, 4700, Source::kMeasured});
  for (const double factor : {0.5, 0.9, 1.0, 1.1, 2.0, 10.0}) {
    INFO(factor);
    const Estimate dense_us{40, 36, 44, Source::kMeasured};
    const std::array<LayersAndTime, 1> dense{{{32, dense_us}}};
    const std::array<LayersAndTime, 1> method{{{32, dense_us * (1 / factor)}}};
    const DecodeStep step = decode_step(llm, machine, 1, dense, method);
    CHECK(step.speedup.low <= step.speedup.value);
    CHECK(step.speedup.value <= step.speedup.high);
    CHECK(step.speedup.low >= std::min(1.0, factor));
    CHECK(step.speedup.high <= std::max(1.0, factor));
    CHECK(step.weights_us.low < step.weights_us.high);
  }
}

TEST_CASE("attention times must cover the model's layers") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  const std::array<LayersAndTime, 1> all{{{32, exactly(1)}}};
  const std::array<LayersAndTime, 1> some{{{31, exactly(1)}}};
  CHECK_THROWS_WITH(decode_step(llm, machine_with(exactly(1000)), 1, all, some),
                    ContainsSubstring("31 layers"));
  CHECK_THROWS_AS(decode_step(llm, machine_with(exactly(1000)), 0, all, all), UsageError);
}

}  // namespace
}  // namespace kvsim
