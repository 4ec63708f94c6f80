// What a measuring process hands to its parent.

#include <utility>

#include "sim/measure.h"
#include "sim/scaled_statistics.h"

namespace kvsim {
namespace {

template <typename T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

template <typename T>
std::optional<T> optional_from(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<T>(json.get<T>());
}

Json method_json(const MethodTimes& times) {
  return {{"spec", times.spec},
          {"back_to_back_us", times.back_to_back_us},
          {"spaced_us", times.spaced_us},
          {"ceilings", times.ceilings},
          {"floor_bytes", times.floor_bytes},
          {"statistics", json_of(times.statistics)},
          {"statistics_measured", times.statistics_measured},
          {"relative_l2", nullable(times.relative_l2)},
          {"repeatable", times.repeatable},
          {"selection_differences", nullable(times.selection_differences)}};
}

MethodTimes method_from(const Json& json) {
  MethodTimes times;
  times.spec = json.at("spec").get<std::string>();
  times.back_to_back_us = json.at("back_to_back_us").get<std::vector<double>>();
  times.spaced_us = json.at("spaced_us").get<std::vector<double>>();
  times.ceilings = json.at("ceilings").get<std::vector<std::size_t>>();
  times.floor_bytes = json.at("floor_bytes").get<double>();
  for (const auto& [name, field] : kStatisticsFields) {
    times.statistics.*field = json.at("statistics").at(std::string(name)).get<double>();
  }
  times.statistics_measured = json.at("statistics_measured").get<bool>();
  times.relative_l2 = optional_from<double>(json.at("relative_l2"));
  times.repeatable = json.at("repeatable").get<bool>();
  times.selection_differences = optional_from<std::int64_t>(json.at("selection_differences"));
  return times;
}

Json result_json(const MeasureResult& result) {
  Json methods = Json::array();
  for (const MethodTimes& times : result.methods) methods.push_back(method_json(times));
  Json ceilings = Json::array();
  for (const ReadCeiling& ceiling : result.ceilings) {
    ceilings.push_back({{"reads", ceiling.reads},
                        {"bytes", ceiling.bytes},
                        {"launch", ceiling.launch},
                        {"samples_us", ceiling.samples_us}});
  }
  return {{"methods", std::move(methods)},
          {"ceilings", std::move(ceilings)},
          {"spacer_us", result.spacer_us},
          {"copies", result.copies},
          {"rotated_bytes", result.rotated_bytes},
          {"stream_held", result.stream_held},
          {"throttled_samples", result.throttled_samples},
          {"sm_mhz", result.sm_mhz},
          {"board_sm_mhz", result.board.sm_mhz},
          {"memory_mhz", result.board.memory_mhz},
          {"temperature_c", result.board.temperature_c},
          {"power_w", result.board.power_w}};
}

MeasureResult result_from(const Json& json) {
  MeasureResult result;
  for (const Json& method : json.at("methods")) result.methods.push_back(method_from(method));
  for (const Json& ceiling : json.at("ceilings")) {
    result.ceilings.push_back({ceiling.at("reads").get<std::string>(),
                               ceiling.at("bytes").get<double>(),
                               ceiling.at("launch").get<std::string>(),
                               ceiling.at("samples_us").get<std::vector<double>>()});
  }
  result.spacer_us = json.at("spacer_us").get<double>();
  result.copies = json.at("copies").get<int>();
  result.rotated_bytes = json.at("rotated_bytes").get<double>();
  result.stream_held = json.at("stream_held").get<bool>();
  result.throttled_samples = json.at("throttled_samples").get<int>();
  result.sm_mhz = json.at("sm_mhz").get<double>();
  result.board.sm_mhz = json.at("board_sm_mhz").get<double>();
  result.board.memory_mhz = json.at("memory_mhz").get<double>();
  result.board.temperature_c = json.at("temperature_c").get<double>();
  result.board.power_w = json.at("power_w").get<double>();
  return result;
}

}  // namespace

MeasuredProcess measure_cases(const MeasureOptions& options, int process) {
  MeasuredProcess measured;
  measured.gpu = gpu_info();
  MeasureRequest request;
  request.methods = options.methods;
  request.seed = options.seed + static_cast<std::uint64_t>(process);
  request.least_samples = options.least_samples;
  request.seconds = options.seconds;
  request.check_only = options.check_only;
  for (const MeasureCase& shape : options.cases) {
    request.shape = shape;
    measured.cases.push_back(measure_on_gpu(request));
  }
  return measured;
}

Json json_of(const MeasuredProcess& process) {
  Json cases = Json::array();
  for (const MeasureResult& result : process.cases) cases.push_back(result_json(result));
  return {{"name", process.gpu.name},
          {"sms", process.gpu.limits.sms},
          {"threads_per_sm", process.gpu.limits.threads_per_sm},
          {"shared_bytes_per_sm", process.gpu.limits.shared_bytes_per_sm},
          {"l2_bytes", process.gpu.limits.l2_bytes},
          {"max_sm_mhz", process.gpu.max_sm_mhz},
          {"driver", process.gpu.driver},
          {"runtime", process.gpu.runtime},
          {"cases", std::move(cases)}};
}

MeasuredProcess measured_process_from(const Json& json) {
  MeasuredProcess process;
  process.gpu.name = json.at("name").get<std::string>();
  process.gpu.limits.sms = json.at("sms").get<int>();
  process.gpu.limits.threads_per_sm = json.at("threads_per_sm").get<int>();
  process.gpu.limits.shared_bytes_per_sm = json.at("shared_bytes_per_sm").get<std::int64_t>();
  process.gpu.limits.l2_bytes = json.at("l2_bytes").get<std::int64_t>();
  process.gpu.max_sm_mhz = json.at("max_sm_mhz").get<double>();
  process.gpu.driver = json.at("driver").get<std::string>();
  process.gpu.runtime = json.at("runtime").get<std::string>();
  for (const Json& result : json.at("cases")) process.cases.push_back(result_from(result));
  return process;
}

}  // namespace kvsim
