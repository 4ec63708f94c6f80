#include "sim/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/method_table.h"

namespace kvsim {
namespace {

void add_decode_step(MethodTable& table) {
  table.figure("decode-step speedup", [](const Json& method) {
    const Json& step = method.at("decode_step");
    return step.is_null() ? "-" : interval_text(step.at("speedup"));
  });
  table.figure("break-even, tokens", [](const Json& method) {
    const Json& step = method.at("decode_step");
    if (step.is_null() || step.at("break_even_context").is_null()) return std::string("-");
    return fmt::format("{}", step.at("break_even_context").get<std::int64_t>());
  });
}

/// Reasons for what is null, once each.
std::vector<std::string> reasons(const Json& document) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& line) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  };
  for (const Json& method : document.at("methods")) {
    const Json step = method.value("decode_step", Json());
    if (method.contains("decode_step_reason")) {
      add("no decode step: " + method.at("decode_step_reason").get<std::string>());
    }
    if (!step.is_object()) continue;
    if (step.contains("break_even_context_reason")) {
      add(fmt::format("{}: no break-even context: {}", method.at("spec").get<std::string>(),
                      step.at("break_even_context_reason").get<std::string>()));
    }
    for (const Json& note : step.value("notes", Json::array())) add(note.get<std::string>());
  }
  return lines;
}

bool has_times(const Json& methods) {
  return std::any_of(methods.begin(), methods.end(), [](const Json& method) {
    return !method.at("time").at("measured_us").is_null();
  });
}

bool leaves_out_features(const Json& methods) {
  return std::any_of(methods.begin(), methods.end(), [](const Json& method) {
    return method.at("selection").at("k_feature_fraction_head") < 1;
  });
}

std::string title(const Json& document) {
  const Json& trace = document.at("trace");
  std::string text = fmt::format(
      "{}{}: {} prompt tokens, {} steps, {} layers", trace.at("model").get<std::string>(),
      trace.at("synthetic").get<bool>() ? " (synthetic)" : "",
      trace.at("prompt_tokens").get<std::int64_t>(), trace.at("replayed_steps").size(),
      trace.at("replayed_layers").size());
  if (document.contains("traces"))
    text += fmt::format("; {} traces pooled", document["traces"].size());
  if (!document.at("gpu").is_null()) {
    text += fmt::format("; {}", document.at("gpu_title").get<std::string>());
  }
  return text + "\nper layer and step, whole batch, means; [low, high] = 90 % interval\n\n";
}

}  // namespace

std::string notes_text(const Json& document) {
  std::string text;
  for (const Json& note : document.at("notes")) text += "- " + note.get<std::string>() + "\n";
  for (const std::string& line : reasons(document)) text += "- " + line + "\n";
  std::string defaults;
  for (const Json& item : document.at("defaults")) {
    defaults +=
        fmt::format("{}{} {}", defaults.empty() ? "" : ", ", item.at("option").get<std::string>(),
                    item.at("value").get<std::string>());
  }
  if (!defaults.empty()) text += "- defaults that decided: " + defaults + "\n";
  return text;
}

std::string replay_report(const Json& document) {
  const Json& methods = document.at("methods");
  MethodTable table(methods);
  table.number("V rows/head", "/selection/rows_per_head_mean");
  table.number("union rows", "/selection/union_rows_mean");
  table.number("of context", "/selection/union_fraction");
  table.number("GQA ampl.", "/selection/gqa_amplification");
  table.number("mass", "/selection/mass_recall_mean");
  if (leaves_out_features(methods)) {
    table.number("K features, head", "/selection/k_feature_fraction_head");
    table.number("K features, group", "/selection/k_feature_fraction_group");
  }
  table.number("L2 error, mean", "/error/relative_l2/mean");
  table.number("L2 error, p95", "/error/relative_l2/p95");
  table.number("DRAM, kB", "/traffic/dram_bytes", 1e3);
  table.number("of dense", "/traffic/dram_share_of_dense");
  if (!methods.front().at("error").at("bias").is_null()) {
    table.new_block();
    table.number("L2 error, rms", "/error/relative_l2/rms");
    table.interval("bias, rms", "/error/bias/relative_l2");
    table.number("mean output's error, rms", "/error/bias/mean_output_l2");
    table.number("floor, rms", "/error/bias/floor_l2");
  }
  table.new_block();
  table.interval("GPU time, us", "/time/predicted_us");
  if (has_times(methods)) table.interval("measured, us", "/time/measured_us");
  table.interval("GPU energy, uJ", "/energy/total_pj", 1e6);
  table.interval("its datapath, uJ", "/energy/datapath_pj", 1e6);
  add_decode_step(table);
  table.preparation();
  table.new_block();
  table.accelerators();
  return title(document) + table.text() + "\n" + notes_text(document);
}

}  // namespace kvsim
