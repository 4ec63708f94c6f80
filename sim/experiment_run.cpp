#include "sim/experiment_run.h"

#include <fmt/format.h>
#include <stdlib.h>  // mkdtemp

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/table.h"
#include "sim/calibration.h"
#include "sim/child_process.h"
#include "sim/json_node.h"
#include "sim/method_table.h"
#include "sim/shipped_traces.h"

namespace kvsim {
namespace {

/// A folder for what the commands write, made when the first one asks for it and deleted with
/// everything in it.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() {
    if (path_.empty()) {
      std::string name = (std::filesystem::temp_directory_path() / "kvsim-XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr) fail<RuntimeError>("{}: cannot be made", name);
      path_ = name;
    }
    return path_;
  }

 private:
  std::string path_;
};

/// What stands for folders in commands; each is looked for when the first command needs it.
class Folders {
 public:
  explicit Folders(std::string traces) : traces_(std::move(traces)) {}

  /// The words of a command, blanks between them.
  std::vector<std::string> words_of(const std::string& command) {
    std::vector<std::string> words;
    std::istringstream in(command);
    for (std::string word; in >> word;) {
      fill(word, "{scratch}", [&] { return scratch_.path(); });
      fill(word, "{traces}", [&] { return shipped_traces(traces_); });
      words.push_back(word);
    }
    return words;
  }

 private:
  template <typename Path>
  static void fill(std::string& word, const std::string& name, const Path& path) {
    for (std::size_t at = 0; (at = word.find(name, at)) != std::string::npos;) {
      const std::string folder = path();
      word.replace(at, name.size(), folder);
      at += folder.size();
    }
  }

  ScratchFolder scratch_;
  std::string traces_;
};

Json document_of(const Experiment& experiment, const ExperimentRun& run, const CommonWords& common,
                 Folders& folders) {
  const std::string place =
      fmt::format("{}: run '{}' (kvsim {})", experiment.run_path, run.name, run.command);
  std::string text;
  try {
    std::vector<std::string> words = folders.words_of(run.command);
    words.insert(words.end(), common.shown.begin(), common.shown.end());
    words.insert(words.end(), common.silent.begin(), common.silent.end());
    words.emplace_back("--json");
    text = run_this_program(words);
  } catch (const RuntimeError& error) {
    fail<RuntimeError>("{}: {}", place, error.what());
  }
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) fail<RuntimeError>("{}: prints no JSON document", place);
  return document;
}

/// A number, and its interval where it is an estimate.
struct Found {
  Interval number;
  bool is_estimate = false;
};

using Documents = std::map<std::string, Json>;

Found find(const Term& term, const Documents& documents) {
  const Json& json = term.place.find(documents.at(term.run));
  if (json.is_number()) {
    const double value = json.get<double>() * term.times;
    return {{value, value, value}, false};
  }
  if (!json.is_object() || !json.contains("value")) {
    fail<RuntimeError>("{} is of type {}, expected a number or an estimate", term.place.pointer(),
                       json.type_name());
  }
  Interval number = JsonNode(json, term.run + ":" + term.place.pointer()).interval();
  number = {number.value * term.times, number.low * term.times, number.high * term.times};
  if (term.times < 0) std::swap(number.low, number.high);
  return {number, true};
}

Found sum(const std::vector<Term>& terms, const Documents& documents) {
  Found total;
  for (const Term& term : terms) {
    const Found found = find(term, documents);
    total.number.value += found.number.value;
    total.number.low += found.number.low;
    total.number.high += found.number.high;
    total.is_estimate = total.is_estimate || found.is_estimate;
  }
  return total;
}

/// Ours, with an interval if the formula is a sum of estimates: in a ratio their errors would
/// partly cancel, nobody knows how far.
Found evaluate(const Formula& formula, const Documents& documents) {
  const Found found = sum(formula.of, documents);
  if (formula.over.empty()) return found;
  const double divisor = sum(formula.over, documents).number.value;
  if (divisor == 0) throw RuntimeError("what it is divided by (over) is 0");
  const double ratio = found.number.value / divisor;
  return {{ratio, ratio, ratio}, false};
}

/// What a factor of a calibration multiplies in a quantity.
double part_of(const Formula& formula, const Factor& factor, const Documents& documents) {
  std::vector<Term> terms;
  for (const Term& term : formula.of) {
    const std::string& own = term.place.pointer();
    for (const auto& [beside, times] : factor.parts) {
      terms.push_back(
          {term.run, JsonPlace(own.substr(0, own.rfind('/')) + beside), term.times * times});
    }
  }
  return sum(terms, documents).number.value;
}

/// The rows of a calibration by the names of their quantities, and what comes of them.
struct Calibration {
  std::vector<std::string> names;
  std::vector<CalibrationRow> rows;
  std::vector<double> factors;

  const CalibrationRow* row_of(const std::string& quantity) const {
    const auto found = std::find(names.begin(), names.end(), quantity);
    return found == names.end() ? nullptr : &rows[static_cast<std::size_t>(found - names.begin())];
  }
};

Calibration calibrate(const Experiment& experiment, const Documents& documents) {
  Calibration result;
  if (!experiment.calibration) return result;
  const CalibrationPlan& plan = *experiment.calibration;
  for (const Quantity& quantity : experiment.quantities) {
    const auto role = plan.roles.find(quantity.name);
    if (role == plan.roles.end()) continue;
    CalibrationRow row{quantity.expected, 0, {}, role->second};
    try {
      if (quantity.expected == 0)
        throw RuntimeError("0 is expected, which no error is relative to");
      row.ours = evaluate(quantity.ours, documents).number.value;
      for (const Factor& factor : plan.factors) {
        row.parts.push_back(part_of(quantity.ours, factor, documents));
      }
    } catch (const RuntimeError& error) {
      fail<RuntimeError>("{}: calibration: \"{}\": {}", experiment.run_path, quantity.name,
                         error.what());
    }
    result.names.push_back(quantity.name);
    result.rows.push_back(std::move(row));
  }
  try {
    result.factors = fit_factors(result.rows);
  } catch (const RuntimeError& error) {
    fail<RuntimeError>("{}: calibration: {}", experiment.run_path, error.what());
  }
  return result;
}

Json calibration_json(const Experiment& experiment, const Calibration& calibration) {
  Json factors = Json::array();
  for (std::size_t i = 0; i < calibration.factors.size(); ++i) {
    factors.push_back({{"name", experiment.calibration->factors[i].name},
                       {"factor", finite(calibration.factors[i])}});
  }
  Json json{{"factors", std::move(factors)}};
  Json all = Json::array();
  for (const CalibrationRole role :
       {CalibrationRole::kFitted, CalibrationRole::kHeldOut, CalibrationRole::kAside}) {
    const CalibrationErrors errors = mean_errors(calibration.rows, role, calibration.factors);
    if (errors.rows == 0) continue;
    all.push_back({{"role", to_string(role)},
                   {"quantities", errors.rows},
                   {"mean_error_percent", finite(100 * errors.uncalibrated)},
                   {"calibrated_mean_error_percent", finite(100 * errors.calibrated)}});
  }
  json["errors"] = std::move(all);
  return json;
}

const char* status_of(const Quantity& quantity, double ours) {
  // The last digits of a decimal number must not decide.
  const double tolerance = quantity.tolerance + 1e-9 * std::abs(quantity.expected);
  if (std::abs(ours - quantity.expected) <= tolerance) return "agrees";
  const auto& known = quantity.explanation;
  return known && std::abs(ours - known->value) <= tolerance ? "explained" : "differs";
}

/// What the factors make of a quantity; returns what its status goes by.
double add_calibrated(const Quantity& quantity, const Calibration& calibration, double ours,
                      Json& json) {
  const CalibrationRow* row = calibration.row_of(quantity.name);
  if (row == nullptr) return ours;
  const double value = row->calibrated(calibration.factors);
  json["calibrated"] = finite(value);
  json["calibrated_difference_percent"] =
      finite(100 * (value - quantity.expected) / std::abs(quantity.expected));
  json["role"] = to_string(row->role);
  return value;
}

Json quantity_json(const Experiment& experiment, const Quantity& quantity,
                   const Documents& documents, const Calibration& calibration) {
  Found ours;
  try {
    ours = evaluate(quantity.ours, documents);
  } catch (const RuntimeError& error) {
    fail<RuntimeError>("{}: ours.\"{}\": {}", experiment.run_path, quantity.name, error.what());
  }
  const double difference = ours.number.value - quantity.expected;
  Json json{{"quantity", quantity.name},
            {"unit", quantity.unit},
            {"expected", quantity.expected},
            {"ours", finite(ours.number.value)}};
  if (ours.is_estimate) {
    json["interval"] = {{"low", finite(ours.number.low)}, {"high", finite(ours.number.high)}};
  } else {
    json["interval"] = nullptr;
    json["interval_reason"] = "a ratio, or a number without an interval";
  }
  json["difference"] = finite(difference);
  if (quantity.expected != 0) {
    json["difference_percent"] = finite(100 * difference / std::abs(quantity.expected));
  } else {
    json["difference_percent"] = nullptr;
    json["difference_percent_reason"] = "0 was expected";
  }
  json["tolerance"] = quantity.tolerance;
  json["tolerance_as_written"] = quantity.tolerance_text;
  const double judged = add_calibrated(quantity, calibration, ours.number.value, json);
  json["status"] = status_of(quantity, judged);
  json["where"] = quantity.where;
  if (quantity.explanation) {
    json["explained_value"] = quantity.explanation->value;
    json["reason"] = quantity.explanation->reason;
  }
  return json;
}

/// Of all its quantities the worst.
std::string worst_status(const Json& quantities) {
  std::string worst = "agrees";
  for (const Json& quantity : quantities) {
    const auto status = quantity.at("status").get<std::string>();
    if (status == "differs" || worst == "agrees") worst = status;
  }
  return worst;
}

std::string string_at(const Json& json, const char* key) { return json.at(key).get<std::string>(); }

std::string ours_text(const Json& quantity) {
  const Json& interval = quantity.at("interval");
  const std::string value = number_text(quantity.at("ours"));
  if (interval.is_null()) return value;
  return fmt::format("{} [{}, {}]", value, number_text(interval.at("low")),
                     number_text(interval.at("high")));
}

std::string percent_text(const Json& percent) {
  const auto value = percent.get<double>();
  return std::abs(value) < 0.05 ? "0.0 %" : fmt::format("{:+.1f} %", value);
}

std::string difference_text(const Json& quantity) {
  const Json& percent = quantity.at("difference_percent");
  return percent.is_null() ? number_text(quantity.at("difference")) : percent_text(percent);
}

/// What factors made of the quantities, their own table.
std::string calibration_text(const Json& experiment) {
  if (!experiment.contains("calibration")) return "";
  const Json& calibration = experiment.at("calibration");
  Table table({"calibrated", "expected", "ours", "difference", "calibrated", "difference", "role"});
  table.align_left(6);
  for (const Json& quantity : experiment.at("quantities")) {
    if (!quantity.contains("role")) continue;
    table.add_row({string_at(quantity, "quantity"), number_text(quantity.at("expected")),
                   number_text(quantity.at("ours")), difference_text(quantity),
                   number_text(quantity.at("calibrated")),
                   percent_text(quantity.at("calibrated_difference_percent")),
                   string_at(quantity, "role")});
  }
  std::string text = table.text() + "  factors:";
  for (const Json& factor : calibration.at("factors")) {
    text += fmt::format(" {} {:.4g}", string_at(factor, "name"), factor.at("factor").get<double>());
  }
  for (const Json& errors : calibration.at("errors")) {
    text += fmt::format("\n  mean error, {} {}: {:.2f} % as predicted, {:.2f} % calibrated",
                        errors.at("quantities").get<int>(), string_at(errors, "role"),
                        errors.at("mean_error_percent").get<double>(),
                        errors.at("calibrated_mean_error_percent").get<double>());
  }
  return text + "\n";
}

}  // namespace

Json run_experiment(const Experiment& experiment, const CommonWords& words,
                    const std::string& traces) {
  Folders folders(traces);
  Documents documents;
  Json runs = Json::array();
  for (const ExperimentRun& run : experiment.runs) {
    documents[run.name] = document_of(experiment, run, words, folders);
    runs.push_back({{"name", run.name}, {"command", run.command}});
  }
  const Calibration calibration = calibrate(experiment, documents);
  Json quantities = Json::array();
  for (const Quantity& quantity : experiment.quantities) {
    quantities.push_back(quantity_json(experiment, quantity, documents, calibration));
  }
  Json json{{"name", experiment.name},     {"title", experiment.title},
            {"source", experiment.source}, {"status", worst_status(quantities)},
            {"runs", std::move(runs)},     {"quantities", std::move(quantities)}};
  if (experiment.calibration) json["calibration"] = calibration_json(experiment, calibration);
  return json;
}

std::string experiment_text(const Json& experiment) {
  Table table({"", "unit", "expected", "ours", "difference", "tolerance", "status", "where"});
  table.align_left(1);
  for (const std::size_t column : {6u, 7u}) table.align_left(column);
  std::string reasons;
  for (const Json& quantity : experiment.at("quantities")) {
    const std::string name = string_at(quantity, "quantity");
    const std::string status = string_at(quantity, "status");
    table.add_row({name, string_at(quantity, "unit"), number_text(quantity.at("expected")),
                   ours_text(quantity), difference_text(quantity),
                   string_at(quantity, "tolerance_as_written"), status,
                   string_at(quantity, "where")});
    if (status == "explained") {
      reasons += fmt::format("  {}: {}\n", name, string_at(quantity, "reason"));
    }
  }
  return fmt::format("{}: {}\n  {}\n{}{}{}", string_at(experiment, "name"),
                     string_at(experiment, "title"), string_at(experiment, "source"), table.text(),
                     calibration_text(experiment), reasons);
}

std::vector<std::string> differing(const Json& experiments) {
  std::vector<std::string> names;
  for (const Json& experiment : experiments) {
    for (const Json& quantity : experiment.at("quantities")) {
      if (quantity.at("status") != "differs") continue;
      names.push_back(
          fmt::format("{}: {}", string_at(experiment, "name"), string_at(quantity, "quantity")));
    }
  }
  return names;
}

}  // namespace kvsim
