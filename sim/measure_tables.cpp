// The measure document as CSV and as a table for people.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "core/table.h"
#include "sim/measure.h"
#include "sim/method_table.h"
#include "sim/report.h"

namespace kvsim {
namespace {

/// A column of the CSV: how its cell is had from the document and a row.
struct Column {
  std::string name;
  std::function<Json(const Json& document, const Json& row)> value;
};

Column of_row(const std::string& name, const std::string& pointer) {
  return {name,
          [pointer](const Json&, const Json& row) { return row.at(Json::json_pointer(pointer)); }};
}
Column of_row(const std::string& name) { return of_row(name, "/" + name); }
Column of_traced_row(const std::string& name) {
  return {name, [name](const Json&, const Json& row) { return row.value(name, Json()); }};
}
Column of_document(const std::string& name, const std::string& key) {
  return {name, [key](const Json& document, const Json&) { return document.at(key); }};
}
Column fixed(const std::string& name, const Json& value) {
  return {name, [value](const Json&, const Json&) { return value; }};
}

/// "30000+100" for unequal lengths, "30000" for equal ones.
std::string contexts_text(const Json& row) {
  const auto contexts = row.at("contexts").get<std::vector<std::int64_t>>();
  const bool equal = std::all_of(contexts.begin(), contexts.end(),
                                 [&](std::int64_t n) { return n == contexts.front(); });
  return equal ? fmt::format("{}", contexts.front()) : fmt::format("{}", fmt::join(contexts, "+"));
}

Json mean_context(const Json&, const Json& row) {
  const auto contexts = row.at("contexts").get<std::vector<double>>();
  const double sum = std::accumulate(contexts.begin(), contexts.end(), 0.0);
  return std::llround(sum / static_cast<double>(contexts.size()));
}

Json long_dtype(const Json&, const Json& row) {
  return row.at("kv_dtype") == "fp16" ? "float16" : "bfloat16";
}

/// The columns of public tables of decode-attention timings, so that one reader takes both.
std::vector<Column> public_columns() {
  return {{"method",
           [](const Json&, const Json& row) {
             return row.at("reads_all") == true ? Json("dense_decode") : row.at("spec");
           }},
          fixed("framework", "kvsim"),
          of_document("framework_version", "version"),
          of_document("device", "device"),
          {"batch", [](const Json&, const Json& row) { return row.at("contexts").size(); }},
          {"context_tokens", mean_context},
          of_row("q_heads"),
          of_row("kv_heads"),
          of_row("head_dim"),
          {"kv_dtype", long_dtype},
          {"q_dtype", long_dtype},
          fixed("window_tokens", 0),
          of_row("latency_us"),
          of_row("power_w"),
          fixed("power_reliable", 0),  // a case runs for less than a second at a time
          {"suspect",
           [](const Json&, const Json& row) { return row.at("wrong") == "" ? Json(0) : Json(1); }},
          of_row("suspect_reason", "/wrong"),
          of_row("kernel", "/spec")};
}

std::vector<Column> own_columns() {
  std::vector<Column> columns{
      {"contexts", [](const Json&, const Json& row) { return contexts_text(row); }},
      of_row("layout"),
      of_row("query_sd"),
      of_row("latency_low_us"),
      of_row("latency_high_us"),
      of_row("spaced_us"),
      of_row("spaced_low_us"),
      of_row("spaced_high_us"),
      of_row("spacer_us"),
      of_row("floor_bytes"),
      of_row("bandwidth_gb_per_s"),
      of_row("peak_share")};
  for (const std::string part : {"reads", "latency_us", "ratio", "ratio_low", "ratio_high"}) {
    columns.push_back(of_row("ceiling_" + part, "/ceilings/0/" + part));
  }
  for (const std::string part : {"latency_us", "ratio", "ratio_low", "ratio_high"}) {
    columns.push_back({"k_ceiling_" + part, [part](const Json&, const Json& row) {
                         const Json& ceilings = row.at("ceilings");
                         return ceilings.size() > 1 ? ceilings.at(1).at(part) : Json();
                       }});
  }
  const std::vector<Column> more{of_document("baseline", "baseline"),
                                 of_row("speedup"),
                                 of_row("speedup_low"),
                                 of_row("speedup_high"),
                                 of_row("relative_l2"),
                                 of_row("repeatable"),
                                 of_row("selection_differences"),
                                 of_document("gpu", "gpu"),
                                 of_row("predicted_us", "/predicted_us/value"),
                                 of_row("predicted_low_us", "/predicted_us/low"),
                                 of_row("predicted_high_us", "/predicted_us/high"),
                                 of_row("predicted_dram_read_bytes"),
                                 of_row("predicted_dram_write_bytes"),
                                 of_row("k_rows", "/statistics/k_rows"),
                                 of_row("v_rows", "/statistics/v_rows"),
                                 of_row("samples"),
                                 of_document("processes", "processes"),
                                 of_row("throttled_samples"),
                                 of_row("copies"),
                                 of_row("sm_mhz"),
                                 of_row("memory_mhz"),
                                 of_row("temperature_c"),
                                 of_document("driver", "driver"),
                                 of_document("cuda", "cuda"),
                                 of_document("commit", "commit"),
                                 of_document("seed", "seed"),
                                 of_document("date", "date"),
                                 of_traced_row("trace"),
                                 of_traced_row("layer"),
                                 of_traced_row("step")};
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}

std::string cell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  return text.find(',') == std::string::npos ? text : "\"" + text + "\"";
}

std::string with_range(const Json& row, const std::string& name, const std::string& unit) {
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", row.at(name + unit).get<double>(),
                     row.at(name + "_low" + unit).get<double>(),
                     row.at(name + "_high" + unit).get<double>());
}

std::string ceilings_text(const Json& row) {
  std::vector<std::string> parts;
  for (const Json& ceiling : row.at("ceilings")) {
    parts.push_back(fmt::format("{:.3f} ({})", ceiling.at("ratio").get<double>(),
                                ceiling.at("reads").get<std::string>()));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string checks_text(const Json& row) {
  const std::string error = row.at("relative_l2").is_null()
                                ? "-"
                                : fmt::format("{:.1e}", row.at("relative_l2").get<double>());
  const auto wrong = row.at("wrong").get<std::string>();
  return wrong.empty() ? error : error + " WRONG: " + wrong;
}

std::string shape_text(const Json& row) {
  const std::string data =
      row.contains("trace")
          ? fmt::format("layer {} step {}", row.at("layer").dump(), row.at("step").dump())
          : fmt::format("sd {:g}", row.at("query_sd").get<double>());
  return fmt::format("{}/{}/{} {} {} {}", row.at("q_heads").get<int>(),
                     row.at("kv_heads").get<int>(), row.at("head_dim").get<int>(),
                     row.at("kv_dtype").get<std::string>(), row.at("layout").get<std::string>(),
                     data);
}

/// The GPU above a table, the notes below it.
std::string framed(const Json& document, const Table& table) {
  const Json about{{"notes", document.at("notes")},
                   {"defaults", document.at("defaults")},
                   {"methods", Json::array()}};
  return fmt::format(
      "{}, driver {}, CUDA {}, commit {}\n\n{}\n{}", document.at("device").get<std::string>(),
      document.at("driver").get<std::string>(), document.at("cuda").get<std::string>(),
      document.at("commit").get<std::string>(), table.text(), notes_text(about));
}

}  // namespace

std::string measure_csv(const Json& document) {
  std::vector<Column> columns = public_columns();
  const std::vector<Column> own = own_columns();
  columns.insert(columns.end(), own.begin(), own.end());
  std::string text;
  for (const Column& column : columns) text += (text.empty() ? "" : ",") + column.name;
  text += "\n";
  for (const Json& row : document.at("rows")) {
    std::vector<std::string> cells;
    for (const Column& column : columns) cells.push_back(cell(column.value(document, row)));
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

std::string measure_report(const Json& document) {
  Table table({"method", "shape", "context", "batch", "latency us", "spaced us", "GB/s",
               "x ceiling (reads)", "speedup", "predicted us", "rel. L2"});
  for (const Json& row : document.at("rows")) {
    table.add_row({row.at("spec").get<std::string>(), shape_text(row), contexts_text(row),
                   fmt::format("{}", row.at("contexts").size()), with_range(row, "latency", "_us"),
                   number_text(row.at("spaced_us")), number_text(row.at("bandwidth_gb_per_s")),
                   ceilings_text(row), with_range(row, "speedup", ""),
                   interval_text(row.at("predicted_us")), checks_text(row)});
  }
  return framed(document, table);
}

std::string measure_check_report(const Json& document) {
  Table table({"method", "shape", "context", "batch", "floor bytes", "DRAM bytes (model)",
               "rows off the rule", "rel. L2"});
  for (const Json& row : document.at("rows")) {
    const double bytes = row.at("predicted_dram_read_bytes").get<double>() +
                         row.at("predicted_dram_write_bytes").get<double>();
    const Json& off = row.at("selection_differences");
    table.add_row({row.at("spec").get<std::string>(), shape_text(row), contexts_text(row),
                   fmt::format("{}", row.at("contexts").size()), whole_text(row.at("floor_bytes")),
                   whole_text(bytes), off.is_null() ? "-" : off.dump(), checks_text(row)});
  }
  return framed(document, table);
}

}  // namespace kvsim
