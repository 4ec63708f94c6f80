#include "sim/experiment.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/csv.h"
#include "core/error.h"

namespace kvsim {
namespace {

/// A table of run.toml that knows its place, for messages, and which of its keys were asked for.
class TomlTable {
 public:
  TomlTable(const toml::table& table, std::string place)
      : table_(table), place_(std::move(place)) {}

  std::string text(const std::string& key) const {
    const auto* string = need(key).as_string();
    if (string == nullptr || string->get().empty()) wrong(key, "a string that is not empty");
    return string->get();
  }
  bool has(const std::string& key) const { return table_.contains(key); }
  /// A list of strings, or one alone.
  std::vector<std::string> texts(const std::string& key) const {
    const toml::array* list = need(key).as_array();
    if (list == nullptr) return {text(key)};
    std::vector<std::string> result;
    for (const toml::node& item : *list) {
      result.push_back(item.value<std::string>().value_or(""));
      if (result.back().empty()) wrong(key, "a string or a list of strings");
    }
    if (result.empty()) wrong(key, "at least one string");
    return result;
  }
  std::vector<std::string> keys() const {
    std::vector<std::string> result;
    for (const auto& [key, node] : table_) result.emplace_back(key.str());
    return result;
  }
  TomlTable table(const std::string& key) const {
    const toml::table* table = need(key).as_table();
    if (table == nullptr) wrong(key, "a table");
    return {*table, place(key) + "."};
  }
  const toml::node& need(const std::string& key) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) fail<RuntimeError>("{}{}: is missing", place_, key);
    return *node;
  }
  void allow(const std::set<std::string>& keys) const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (!keys.contains(name)) {
        fail<RuntimeError>("{}{}: is no known key, expected {}", place_, name,
                           fmt::join(keys, ", "));
      }
    }
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const {
    fail<RuntimeError>("{}{}: found something else, expected {}", place_, key, expected);
  }
  std::string place(const std::string& key) const { return place_ + key; }

 private:
  const toml::table& table_;
  std::string place_;
};

toml::table parse_toml(const ExperimentFiles& files) {
  try {
    return toml::parse(files.run_toml, files.run_path);
  } catch (const toml::parse_error& error) {
    fail<RuntimeError>("{}:{}:{}: {}", files.run_path, error.source().begin.line,
                       error.source().begin.column, error.description());
  }
}

/// Reads what run.toml says of one experiment.
class RunFile {
 public:
  RunFile(const toml::table& root, Experiment& experiment)
      : root_(root, experiment.run_path + ": "), experiment_(experiment) {}

  void read() {
    root_.allow({"title", "source", "run", "ours", "calibration"});
    experiment_.title = root_.text("title");
    experiment_.source = root_.text("source");
    read_runs();
    if (!root_.need("ours").is_table()) root_.wrong("ours", "a table of quantities");
    if (root_.has("calibration")) read_calibration();
  }

  /// Every quantity that run.toml has; the order is expected.csv's.
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& [key, node] : ours()) names.emplace(key.str());
    return names;
  }

  Formula formula(const std::string& quantity) const {
    const std::string place = fmt::format("{}ours.\"{}\"", root_.place(""), quantity);
    const toml::node& node = *ours().get(quantity);
    const toml::table* table = node.as_table();
    if (table == nullptr || table->contains("at")) return {sum(node, place), {}};
    const TomlTable keys(*table, place + ".");
    keys.allow({"of", "over"});
    return {sum(keys.need("of"), keys.place("of")), sum(keys.need("over"), keys.place("over"))};
  }

 private:
  const toml::table& ours() const { return *root_.need("ours").as_table(); }

  void read_runs() {
    const toml::array* runs = root_.need("run").as_array();
    if (runs == nullptr || runs->empty()) root_.wrong("run", "tables [[run]]");
    for (std::size_t i = 0; i < runs->size(); ++i) {
      const toml::table* table = (*runs)[i].as_table();
      if (table == nullptr) root_.wrong("run", "tables [[run]]");
      const TomlTable keys(*table, fmt::format("{}[{}].", root_.place("run"), i));
      keys.allow({"name", "command"});
      const std::string name = keys.text("name");
      if (has_run(name)) {
        fail<RuntimeError>("{}: found '{}' twice", keys.place("name"), name);
      }
      experiment_.runs.push_back({name, keys.text("command")});
    }
  }

  void read_calibration() {
    const TomlTable table = root_.table("calibration");
    table.allow({"fit", "held_out", "aside", "factors"});
    CalibrationPlan plan;
    const TomlTable factors = table.table("factors");
    for (const std::string& name : factors.keys()) {
      plan.factors.push_back({name, {}});
      for (const auto& [text, times] : written_sum(factors.need(name), factors.place(name))) {
        if (!text.starts_with('/')) factors.wrong(name, "places that begin with /, or tables");
        plan.factors.back().parts.push_back({text, times});
      }
    }
    const auto read_role = [&](const std::string& key, CalibrationRole role) {
      for (const std::string& quantity : table.texts(key)) {
        check_calibrated(quantity, table.place(key));
        if (plan.roles.emplace(quantity, role).second) continue;
        fail<RuntimeError>("{}: found '{}' twice", table.place(key), quantity);
      }
    };
    read_role("fit", CalibrationRole::kFitted);
    read_role("held_out", CalibrationRole::kHeldOut);
    if (table.has("aside")) read_role("aside", CalibrationRole::kAside);
    experiment_.calibration = std::move(plan);
  }

  void check_calibrated(const std::string& quantity, const std::string& place) const {
    if (!ours().contains(quantity)) {
      fail<RuntimeError>("{}: found '{}', expected quantities of ours", place, quantity);
    }
    if (!formula(quantity).over.empty()) {
      fail<RuntimeError>("{}: '{}' is a quotient, expected terms or sums of them", place, quantity);
    }
  }

  bool has_run(const std::string& name) const {
    const auto& runs = experiment_.runs;
    return std::any_of(runs.begin(), runs.end(),
                       [&name](const ExperimentRun& run) { return run.name == name; });
  }

  /// "text" or { at = "text", times = 2 }.
  struct Written {
    std::string text;
    double times = 1;
  };
  static Written written(const toml::node& node, const std::string& place) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return {node.value<std::string>().value_or("")};
    const TomlTable keys(*table, place + ".");
    keys.allow({"at", "times"});
    const double times = keys.need("times").value<double>().value_or(0);
    if (!std::isfinite(times) || times == 0) keys.wrong("times", "a number, not 0");
    return {keys.text("at"), times};
  }

  /// One of these or a list of them.
  static std::vector<Written> written_sum(const toml::node& node, const std::string& place) {
    const toml::array* list = node.as_array();
    if (list == nullptr) return {written(node, place)};
    std::vector<Written> result;
    for (const toml::node& item : *list) result.push_back(written(item, place));
    if (result.empty()) fail<RuntimeError>("{}: found no terms, expected at least one", place);
    return result;
  }

  std::vector<Term> sum(const toml::node& node, const std::string& place) const {
    std::vector<Term> terms;
    for (const auto& [text, times] : written_sum(node, place)) {
      terms.push_back(parse_term(text, place));
      terms.back().times = times;
    }
    return terms;
  }

  Term parse_term(const std::string& text, const std::string& place) const {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos) {
      fail<RuntimeError>("{}: found '{}', expected \"run:/pointer\", a list of them, or a table",
                         place, text);
    }
    const std::string run = text.substr(0, colon);
    if (!has_run(run)) {
      std::vector<std::string> known;
      for (const ExperimentRun& each : experiment_.runs) known.push_back(each.name);
      fail<RuntimeError>("{}: found the run '{}', expected one of {}", place, run,
                         fmt::join(known, ", "));
    }
    try {
      return {run, JsonPlace(text.substr(colon + 1))};
    } catch (const RuntimeError& error) {
      fail<RuntimeError>("{}: {}", place, error.what());
    }
  }

  TomlTable root_;
  Experiment& experiment_;
};

/// "5%" of the expected value, or a number in its unit.
double parse_tolerance(const CsvFile& file, std::size_t row, double expected) {
  const std::string& text = file.at(row, "tolerance");
  const bool percent = text.ends_with("%");
  double number = 0;
  if (!parse_number(percent ? text.substr(0, text.size() - 1) : text, number) || number < 0) {
    fail<RuntimeError>("{}: tolerance: found '{}', expected a number or a share like 5%",
                       file.place(row), text);
  }
  return percent ? std::abs(expected) * number / 100 : number;
}

std::optional<Explanation> parse_explanation(const CsvFile& file, std::size_t row) {
  const std::string& reason = file.at(row, "reason");
  if (reason.empty() != file.at(row, "explained_value").empty()) {
    fail<RuntimeError>("{}: found one of explained_value and reason, expected both or neither",
                       file.place(row));
  }
  if (reason.empty()) return std::nullopt;
  return Explanation{file.number(row, "explained_value"), reason};
}

/// What is put aside needs a reason.
void check_aside(const Experiment& experiment, const std::string& path) {
  if (!experiment.calibration) return;
  const auto& roles = experiment.calibration->roles;
  for (const Quantity& quantity : experiment.quantities) {
    const auto role = roles.find(quantity.name);
    if (role == roles.end() || role->second != CalibrationRole::kAside) continue;
    if (quantity.explanation) continue;
    fail<RuntimeError>(
        "{}: found no reason for '{}', expected one for what a calibration puts aside", path,
        quantity.name);
  }
}

void check_columns(const CsvFile& file, const std::string& path) {
  const std::vector<std::string> expected{"quantity",        "unit",  "value", "tolerance", "where",
                                          "explained_value", "reason"};
  if (file.columns() != expected) {
    fail<RuntimeError>("{}: found the columns {}, expected {}", path,
                       fmt::join(file.columns(), ", "), fmt::join(expected, ", "));
  }
}

}  // namespace

Experiment parse_experiment(const std::string& name, const ExperimentFiles& files) {
  Experiment experiment;
  experiment.name = name;
  experiment.run_path = files.run_path;
  const toml::table root = parse_toml(files);
  RunFile run(root, experiment);
  run.read();
  const CsvFile expected = CsvFile::parse(files.expected_csv, files.expected_path);
  check_columns(expected, files.expected_path);
  std::set<std::string> left = run.names();
  for (std::size_t row = 0; row < expected.rows(); ++row) {
    const std::string& quantity = expected.at(row, "quantity");
    if (left.erase(quantity) == 0) {
      fail<RuntimeError>("{}: found '{}', expected each quantity of {} once", expected.place(row),
                         quantity, files.run_path);
    }
    const double value = expected.number(row, "value");
    experiment.quantities.push_back({quantity, expected.at(row, "unit"), value,
                                     parse_tolerance(expected, row, value),
                                     expected.at(row, "tolerance"), expected.at(row, "where"),
                                     parse_explanation(expected, row), run.formula(quantity)});
  }
  if (!left.empty()) {
    fail<RuntimeError>("{}: found no line for '{}' of {}", files.expected_path, *left.begin(),
                       files.run_path);
  }
  check_aside(experiment, files.expected_path);
  return experiment;
}

}  // namespace kvsim
