#include "sim/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "kernels/measure/statistics.h"
#include "kernels/method.h"
#include "sim/cost.h"
#include "sim/scaled_statistics.h"

namespace kvsim {
namespace {

constexpr double kMostRelativeL2 = 0.01;  // 16-bit weights and outputs stay below 0.003

/// What all processes measured of one case and one method of it.
struct Row {
  const MeasureOptions& options;
  const MeasureCase& shape;
  std::vector<const MeasureResult*> results;  // one per process
  std::size_t method = 0;

  const MethodTimes& times(const MeasureResult& result) const { return result.methods[method]; }
  const MethodTimes& first() const { return times(*results.front()); }
};

template <typename Value>
std::vector<double> over_processes(const Row& row, const Value& value) {
  std::vector<double> values;
  for (const MeasureResult* result : row.results) values.push_back(value(*result));
  return values;
}

/// Median over processes of process medians, bootstrapped; within the run if there is but one.
template <typename Samples>
Interval time_of(const Row& row, const Samples& samples) {
  if (row.results.size() == 1) return median_interval(samples(*row.results.front()));
  const auto medians =
      over_processes(row, [&](const MeasureResult& r) { return median(samples(r)); });
  return bootstrap(medians, row.options.seed, median);
}

/// Geometric mean of a / b paired by round, then over processes, bootstrapped over the processes.
template <typename A, typename B>
Interval ratio_of(const Row& row, const A& a, const B& b) {
  if (row.results.size() == 1) {
    const MeasureResult& only = *row.results.front();
    return ratio_interval(a(only), b(only), row.options.seed);
  }
  const auto ratios = over_processes(
      row, [&](const MeasureResult& r) { return geometric_mean(paired_ratios(a(r), b(r))); });
  return bootstrap(ratios, row.options.seed, geometric_mean);
}

void put(Json& json, const std::string& name, const std::string& unit, const Interval& interval) {
  json[name + unit] = finite(interval.value);
  json[name + "_low" + unit] = finite(interval.low);
  json[name + "_high" + unit] = finite(interval.high);
}

Json ceilings_json(const Row& row) {
  const auto own = [&](const MeasureResult& r) -> const std::vector<double>& {
    return row.times(r).back_to_back_us;
  };
  Json ceilings = Json::array();
  for (std::size_t i = 0; i < row.first().ceilings.size(); ++i) {
    const auto of = [&](const MeasureResult& r) -> const ReadCeiling& {
      return r.ceilings[row.times(r).ceilings[i]];
    };
    const auto samples = [&](const MeasureResult& r) -> const std::vector<double>& {
      return of(r).samples_us;
    };
    Json json{
        {"reads", of(*row.results.front()).reads},
        {"bytes", finite(median(over_processes(row, [&](const auto& r) { return of(r).bytes; })))},
        {"launch", of(*row.results.front()).launch}};
    put(json, "latency", "_us", time_of(row, samples));
    put(json, "ratio", "", ratio_of(row, own, samples));
    ceilings.push_back(std::move(json));
  }
  return ceilings;
}

Statistics mean_statistics(const Row& row) {
  Statistics sum;
  for (const MeasureResult* result : row.results) sum += row.times(*result).statistics;
  const double share = 1 / static_cast<double>(row.results.size());
  return scaled(sum, share);
}

CacheLayout cache_layout(const MeasureCase& shape) {
  if (shape.layout == MeasureLayout::kHnd) return {LayoutKind::kHnd, 0};
  if (shape.layout == MeasureLayout::kNhd) return {LayoutKind::kNhd, 0};
  return {LayoutKind::kPaged, shape.page_tokens};
}

/// The model's time and DRAM bytes for what was measured; without counted rows the bounds widen it.
void put_prediction(const Row& row, const Method& method, Json& json) {
  const std::vector<std::int64_t> contexts(row.shape.contexts.begin(), row.shape.contexts.end());
  const Target target =
      gpu_target(row.options.machine, {}, cache_layout(row.shape), CacheState::kCold);
  const HeadShape heads{row.shape.q_heads, row.shape.kv_heads, row.shape.head_dim,
                        row.shape.head_dim, false};
  const Shape shape = shape_on(target, heads, contexts, row.shape.prompt_tokens());
  const auto cost = [&](const Statistics& statistics) {
    const Work work = step_work(method.implementation(), shape, statistics, target);
    return step_cost(work, shape, target, nullptr);
  };
  const StepCost expected = cost(mean_statistics(row));
  Estimate us = expected.time.total_us;
  if (!row.first().statistics_measured) {
    us.low = std::min(us.low, cost(method.bounds(shape).low).time.total_us.low);
  }
  json["predicted_us"] = json_of(us);
  json["predicted_dram_read_bytes"] = finite(expected.traffic.dram_read_bytes);
  json["predicted_dram_write_bytes"] = finite(expected.traffic.dram_write_bytes);
  json["statistics"] = json_of(mean_statistics(row));
  json["statistics_measured"] = row.first().statistics_measured;
  const Method::Bounds bounds = method.bounds(shape);
  const double all = shape.total_context() * shape.kv_heads;
  json["reads_all"] =
      bounds.low == bounds.high && bounds.low.k_rows == all && bounds.low.v_rows == all;
}

void put_checks(const Row& row, Json& json) {
  double error = 0;
  bool finite_output = true;
  bool repeatable = true;
  bool compared = true;
  std::int64_t differences = 0;
  for (const MeasureResult* result : row.results) {
    const MethodTimes& times = row.times(*result);
    finite_output = finite_output && times.relative_l2.has_value();
    error = std::max(error, times.relative_l2.value_or(0));
    repeatable = repeatable && times.repeatable;
    compared = compared && times.selection_differences.has_value();
    differences += times.selection_differences.value_or(0);
  }
  json["relative_l2"] = finite_output ? Json(error) : Json();
  if (!finite_output) json["relative_l2_reason"] = "the output is not finite";
  json["repeatable"] = repeatable;
  json["selection_differences"] = compared ? Json(differences) : Json();
  if (!compared) json["selection_differences_reason"] = "the kernel dumps no counts";
  std::string wrong;
  if (differences > 0) wrong = "selection_differs";
  if (!repeatable) wrong = "not_repeatable";
  if (error > kMostRelativeL2) wrong = "wrong_output";
  if (!finite_output) wrong = "not_finite";
  json["wrong"] = wrong;
}

void put_conditions(const Row& row, Json& json) {
  const auto middle = [&](const auto& value) { return finite(median(over_processes(row, value))); };
  json["sm_mhz"] = middle([](const MeasureResult& r) { return r.sm_mhz; });
  json["memory_mhz"] = middle([](const MeasureResult& r) { return r.board.memory_mhz; });
  json["temperature_c"] = middle([](const MeasureResult& r) { return r.board.temperature_c; });
  json["power_w"] = middle([](const MeasureResult& r) { return r.board.power_w; });
  std::size_t samples = 0;
  int throttled = 0;
  for (const MeasureResult* result : row.results) {
    samples += row.times(*result).back_to_back_us.size();
    throttled += result->throttled_samples;
  }
  json["samples"] = samples;
  json["throttled_samples"] = throttled;
  json["stream_held"] = row.results.front()->stream_held;
  json["copies"] = row.results.front()->copies;
  json["rotated_bytes"] = finite(row.results.front()->rotated_bytes);
}

Json shape_json(const MeasureCase& shape) {
  Json json{{"contexts", shape.contexts},         {"q_heads", shape.q_heads},
            {"kv_heads", shape.kv_heads},         {"head_dim", shape.head_dim},
            {"kv_dtype", dtype_name(shape.type)}, {"layout", layout_name(shape)},
            {"query_sd", shape.query_sd}};
  if (shape.traced) {
    json["query_sd"] = nullptr;
    json["query_sd_reason"] = "the queries are a trace's";
    json["trace"] = shape.traced->trace;
    json["layer"] = shape.traced->layer->info.layer;
    json["step"] = shape.traced->step;
  }
  return json;
}

void put_times(const Row& row, Json& json) {
  const auto own = [&](const MeasureResult& r) -> const std::vector<double>& {
    return row.times(r).back_to_back_us;
  };
  const auto baseline = [](const MeasureResult& r) -> const std::vector<double>& {
    return r.methods.front().back_to_back_us;
  };
  const Interval latency = time_of(row, own);
  put(json, "latency", "_us", latency);
  put(json, "spaced", "_us",
      time_of(
          row, [&](const MeasureResult& r) -> const auto& { return row.times(r).spaced_us; }));
  json["spacer_us"] =
      finite(median(over_processes(row, [](const MeasureResult& r) { return r.spacer_us; })));
  const double floor = json["floor_bytes"].get<double>();
  json["bandwidth_gb_per_s"] = finite(floor * 1e-3 / latency.value);
  json["peak_share"] =
      finite(floor * 1e-3 / latency.value / row.options.machine.memory.peak_gb_per_s);
  json["ceilings"] = ceilings_json(row);
  put(json, "speedup", "", ratio_of(row, baseline, own));
}

Json row_json(const Row& row) {
  const NamedMethod method = make_method(row.first().spec);
  Json json{
      {"method", method.name}, {"spec", row.first().spec}, {"params", json_of(method.parameters)}};
  json.update(shape_json(row.shape));
  json["floor_bytes"] = finite(median(
      over_processes(row, [&](const MeasureResult& r) { return row.times(r).floor_bytes; })));
  if (!row.options.check_only) put_times(row, json);
  put_prediction(row, *method.method, json);
  if (!row.options.check_only) {
    json["predicted_over_measured"] =
        finite(json["predicted_us"]["value"].get<double>() / json["latency_us"].get<double>());
  }
  put_checks(row, json);
  if (!row.options.check_only) put_conditions(row, json);
  return json;
}

std::vector<std::string> notes(const MeasureOptions& options, std::size_t processes) {
  if (options.check_only) return {"--check: results were checked, nothing was timed"};
  return {"times are per call in a CUDA graph with a cold L2, [low, high] = 95 % interval; " +
              (processes > 1
                   ? fmt::format("medians over {} processes", processes)
                   : std::string("one process: the interval is within the run and too narrow")),
          "speedup = baseline (" + options.methods.front() + ") over method, paired by round",
          "spaced: a tiny kernel lies between calls and its own time (spacer_us) is subtracted",
          "ceiling: a kernel that only reads as many bytes, as one stream"};
}

}  // namespace

std::string dtype_name(ElementType type) { return type == ElementType::kFloat16 ? "fp16" : "bf16"; }

std::string layout_name(const MeasureCase& shape) {
  if (shape.layout == MeasureLayout::kHnd) return "hnd";
  if (shape.layout == MeasureLayout::kNhd) return "nhd";
  return fmt::format("paged:{}", shape.page_tokens);
}

std::string failed_checks(const Json& document) {
  std::size_t failed = 0;
  std::string first;
  for (const Json& row : document.at("rows")) {
    const auto wrong = row.at("wrong").get<std::string>();
    if (wrong.empty()) continue;
    if (failed++ > 0) continue;
    first = fmt::format("{} at contexts {}: {}", row.at("spec").get<std::string>(),
                        row.at("contexts").dump(), wrong);
  }
  if (failed == 0) return "";
  return fmt::format("{} of {} rows failed their checks, first {}", failed,
                     document.at("rows").size(), first);
}

Json measure_document(const MeasureOptions& options, std::span<const MeasuredProcess> processes) {
  const GpuInfo& gpu = processes.front().gpu;
  Json document{{"schema", "kvsim.measure/1"},
                {"version", options.program_version},
                {"commit", options.program_commit},
                {"date", options.date},
                {"device", gpu.name},
                {"sms", gpu.limits.sms},
                {"l2_bytes", gpu.limits.l2_bytes},
                {"max_sm_mhz", finite(gpu.max_sm_mhz)},
                {"driver", gpu.driver},
                {"cuda", gpu.runtime},
                {"gpu", options.gpu},
                {"baseline", options.methods.front()},
                {"processes", processes.size()},
                {"seed", options.seed},
                {"defaults", json_of(options.defaults)},
                {"notes", notes(options, processes.size())}};
  Json rows = Json::array();
  for (std::size_t c = 0; c < options.cases.size(); ++c) {
    Row row{options, options.cases[c], {}, 0};
    for (const MeasuredProcess& process : processes) {
      KVSIM_CHECK(process.cases.size() == options.cases.size());
      row.results.push_back(&process.cases[c]);
    }
    for (; row.method < options.methods.size(); ++row.method) rows.push_back(row_json(row));
  }
  document["rows"] = std::move(rows);
  return document;
}

}  // namespace kvsim
