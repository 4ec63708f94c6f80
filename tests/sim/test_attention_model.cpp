#include "models/presets.h"
#include "sim/attention_model.h"
#include "sim/decode_study.h"
#include "sim/kv_dtype.h"
#include "sim/scaled_statistics.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

MeasuredLayer measured(int layer, std::int64_t window = 0) {
  MeasuredLayer result;
  result.layer = layer;
  result.window = window;
  result.heads = {32, 8, 128, 128, false};
  result.context_mean = result.context_max = 8192;
  result.prompt_tokens = 8192;
  return result;
}

TEST_CASE("layers of an LLM take the nearest captured layer, the lower one on a tie") {
  Llm llm;
  llm.layers = 8;
  llm.windows.assign(8, 0);
  const std::vector<MeasuredLayer> captured{measured(1), measured(5)};
  const auto classes = classify_layers(llm, captured);
  REQUIRE(classes.size() == 2);
  CHECK(classes[0].measured->layer == 1);
  CHECK(classes[0].layers == 4);  // 0 to 3: layer 3 is as far from 1 as from 5
  CHECK(classes[1].measured->layer == 5);
  CHECK(classes[1].layers == 4);
}

TEST_CASE("layers with a window take captured layers with one, or none") {
  Llm llm;
  llm.layers = 4;
  llm.windows = {512, 0, 512, 0};
  const std::vector<MeasuredLayer> both{measured(0, 256), measured(1)};
  for (const LayerClass& layer : classify_layers(llm, both)) {
    CHECK(layer.layers == 2);
    CHECK(layer.measured->layer == (layer.window > 0 ? 0 : 1));
  }
  const std::vector<MeasuredLayer> full{measured(1)};
  for (const LayerClass& layer : classify_layers(llm, full)) {
    CHECK((layer.measured == nullptr) == (layer.window > 0));
  }
}

Method::Bounds bounds_of(double low, double high) {
  Method::Bounds bounds;
  for (const auto& [name, field] : kStatisticsFields) {
    bounds.low.*field = low;
    bounds.high.*field = high;
  }
  return bounds;
}

TEST_CASE("statistics keep their place between the bounds") {
  Statistics half;
  for (const auto& [name, field] : kStatisticsFields) half.*field = 60;
  const Statistics there = carried_over(half, bounds_of(20, 100), bounds_of(200, 1000));
  for (const auto& [name, field] : kStatisticsFields) CHECK(there.*field == 600);
  // What is fixed stays fixed, and nothing leaves the bounds.
  CHECK(carried_over(half, bounds_of(60, 60), bounds_of(70, 70)).v_rows == 70);
  CHECK(carried_over(half, bounds_of(0, 50), bounds_of(0, 80)).v_rows == 80);
}

Target h200() {
  return gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                    parse_cache_layout("hnd"), CacheState::kCold);
}

TEST_CASE("dense carried over to any context and LLM is dense there") {
  const Llm llm = Presets().llm("smollm2-135m");
  const Target target = h200();
  const Serving serving{llm, target, 4};
  const NamedMethod dense = make_method("dense");
  MeasuredLayer layer = measured(0);
  layer.statistics.k_rows = layer.statistics.v_rows = 8192.0 * 8;
  layer.statistics.k_requests = layer.statistics.v_requests = layer.statistics.draws = 8192.0 * 32;
  const LayerPrediction from_measured =
      predict_layer(serving, {1, 0, &layer}, *dense.method, 20000);
  const LayerPrediction from_bounds = predict_layer(serving, {1, 0, nullptr}, *dense.method, 20000);
  CHECK(from_measured.statistics == from_bounds.statistics);
  CHECK(from_measured.statistics.k_rows == 4.0 * 20000 * llm.kv_heads);
  CHECK(from_measured.attention_us.value == from_bounds.attention_us.value);
}

TEST_CASE("the break-even context is where the predicted attention begins to win") {
  const Llm llm = Presets().llm("smollm2-135m");
  const Target target = h200();
  const Serving serving{llm, target, 1};
  const NamedMethod dense = make_method("dense");
  const NamedMethod santa = make_method("santa-sys:samples=64");
  const DecodeStudy study{serving, dense, santa, {}, {}};
  const auto first = break_even_context(study);
  REQUIRE(first);
  const auto attention = [&](const NamedMethod& method, std::int64_t context) {
    return predict_layer(serving, {1, 0, nullptr}, *method.method, context).attention_us.value;
  };
  CHECK(attention(santa, *first) < attention(dense, *first));
  CHECK(attention(santa, *first - 1) >= attention(dense, *first - 1));
  // The whole step wins with the attention, and by less.
  const DecodeStep step = study_step(study, 4 * *first, false);
  CHECK(step.speedup.value > 1);
  CHECK(step.speedup.value < attention(dense, 4 * *first) / attention(santa, 4 * *first));
  const DecodeStudy same{serving, dense, dense, {}, {}};
  CHECK_FALSE(break_even_context(same));
  CHECK(study_step(same, 4096, false).speedup.value == Approx(1));
}

TEST_CASE("a paged cache is never cheaper than a contiguous one") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  const Target hnd = h200();
  for (const char* spec :
       {"dense", "dense:implementation=published", "topk", "santa-sys",
        "santa-sys:implementation=fallback", "santa-prop:implementation=published", "quest",
        "quest:implementation=published", "skeleton"}) {
    const NamedMethod method = make_method(spec);
    for (const char* layout : {"paged:1", "paged:4", "paged:16", "paged:64", "paged:4096"}) {
      Target paged = hnd;
      paged.layout = parse_cache_layout(layout);
      for (const std::int64_t context : {1, 100, 1000, 4096, 32768, 131072}) {
        INFO(spec << ", " << layout << ", " << context);
        const LayerClass layer{1, 0, nullptr};
        const LayerPrediction a = predict_layer({llm, hnd, 1}, layer, *method.method, context);
        const LayerPrediction b = predict_layer({llm, paged, 1}, layer, *method.method, context);
        CHECK(b.attention_us.value > a.attention_us.value);
        CHECK(b.total_pj.value > a.total_pj.value);
        CHECK(b.cost.traffic.requested_bytes > a.cost.traffic.requested_bytes);
        CHECK(b.cost.traffic.dram_read_bytes > a.cost.traffic.dram_read_bytes);
      }
    }
  }
}

TEST_CASE("dense bytes of a prediction are the whole cache, once") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  const Target target = h200();
  const NamedMethod santa = make_method("santa-sys");
  const LayerPrediction windowed =
      predict_layer({llm, target, 3}, {1, 512, nullptr}, *santa.method, 4096);
  CHECK(windowed.dense_bytes == 3 * 512 * llm.kv_bytes_per_token / llm.layers);
}

}  // namespace
}  // namespace kvsim
