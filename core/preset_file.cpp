#include "core/preset_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr std::string_view kSources = "sources";
constexpr std::array<std::string_view, 8> kConstantKeys{"value", "unit", "kind", "source",
                                                        "low",   "high", "note", "alternatives"};
constexpr std::array<std::string_view, 9> kCurveKeys{"x",      "y",   "x_unit", "unit", "kind",
                                                     "source", "low", "high",   "note"};

/// A constant or a curve: read, and overlaid, as a whole.
bool is_constant(const toml::node& node) {
  const toml::table* table = node.as_table();
  return table != nullptr && (table->contains("value") || table->contains("x"));
}

std::string describe(const toml::node* node) {
  if (node == nullptr) return "nothing";
  if (is_constant(*node)) return "a constant";
  if (node->is_table()) return "a table";
  if (node->is_array()) return "an array";
  if (node->is_string()) return fmt::format("\"{}\"", node->as_string()->get());
  std::ostringstream text;
  node->visit([&text](const auto& leaf) {
    if constexpr (toml::is_value<decltype(leaf)>) text << leaf;
  });
  return text.str();
}

/// Replaces constants and plain values of `base` by those of `top`; other tables are merged. Nodes
/// are moved because a copy would lose its place in the file.
void overlay_table(toml::table& base, toml::table&& top) {
  for (auto&& [key, node] : top) {
    toml::node* old = base.get(key.str());
    if (old != nullptr && old->is_table() && node.is_table() && !is_constant(*old) &&
        !is_constant(node)) {
      overlay_table(*old->as_table(), std::move(*node.as_table()));
    } else {
      std::move(node).visit([&base, name = key.str()](auto&& leaf) {
        base.insert_or_assign(name, std::forward<decltype(leaf)>(leaf));
      });
    }
  }
}

}  // namespace

struct PresetFile::Document {
  toml::table root;
  std::string path;
  std::set<std::string, std::less<>> read;

  /// File and, when `node` is known, its line.
  std::string place(const toml::node* node) const {
    if (node == nullptr || node->source().begin.line == 0) return path;
    const auto& source = node->source();
    return fmt::format("{}:{}", source.path ? *source.path : path, source.begin.line);
  }

  [[noreturn]] void wrong(std::string_view key, const toml::node* node, std::string_view found,
                          std::string_view expected) const {
    fail<RuntimeError>("{}: {}: found {}, expected {}", place(node), key, found, expected);
  }

  const toml::node* find(std::string_view key) const {
    const toml::table* table = &root;
    for (;;) {
      const std::size_t dot = key.find('.');
      const toml::node* node = table->get(key.substr(0, dot));
      if (dot == std::string_view::npos || node == nullptr) return node;
      table = node->as_table();
      if (table == nullptr) return nullptr;
      key = key.substr(dot + 1);
    }
  }

  /// Finds a key that must be there and notes that it was read.
  const toml::node& take(std::string_view key, std::string_view expected) {
    const toml::node* node = find(key);
    if (node == nullptr) wrong(key, nullptr, "no such key", expected);
    read.emplace(key);
    return *node;
  }

  const toml::table& take_constant(std::string_view key, std::string_view expected,
                                   std::span<const std::string_view> allowed) {
    const toml::node& node = take(key, expected);
    const toml::table* table = node.as_table();
    if (table == nullptr) wrong(key, &node, describe(&node), expected);
    for (auto&& [name, child] : *table) {
      if (std::find(allowed.begin(), allowed.end(), name.str()) == allowed.end()) {
        wrong(fmt::format("{}.{}", key, name.str()), &child, "an unknown key",
              fmt::format("{}", fmt::join(allowed, ", ")));
      }
    }
    return *table;
  }

  std::string member_text(std::string_view key, const toml::table& table, std::string_view name,
                          std::string_view expected) const {
    const toml::node* node = table.get(name);
    if (node == nullptr || !node->is_string()) {
      wrong(fmt::format("{}.{}", key, name), node == nullptr ? &table : node, describe(node),
            expected);
    }
    return node->as_string()->get();
  }

  double checked_number(std::string_view key, const toml::node* node,
                        const toml::node& place_of) const {
    const bool is_number = node != nullptr && node->is_number();
    const double value = is_number ? *node->value<double>() : 0;
    if (!is_number || !std::isfinite(value) || value < 0) {
      wrong(key, node == nullptr ? &place_of : node, describe(node), "a number not below 0");
    }
    return value;
  }

  double member_number(std::string_view key, const toml::table& table,
                       std::string_view name) const {
    return checked_number(fmt::format("{}.{}", key, name), table.get(name), table);
  }

  void check_unit(std::string_view key, const toml::table& table, std::string_view name,
                  std::string_view unit) const {
    const std::string expected = fmt::format("the unit \"{}\"", unit);
    const std::string found = member_text(key, table, name, expected);
    if (found != unit) {
      wrong(fmt::format("{}.{}", key, name), table.get(name), fmt::format("\"{}\"", found),
            expected);
    }
  }

  const toml::node* find_source(std::string_view name) const {
    const toml::node* sources = root.get(kSources);
    return sources != nullptr && sources->is_table() ? sources->as_table()->get(name) : nullptr;
  }

  void check_source(std::string_view key, const toml::table& table) const {
    const std::string name = member_text(key, table, "source", "a key of [sources]");
    const toml::node* source = find_source(name);
    if (source == nullptr || !source->is_string()) {
      wrong(fmt::format("{}.source", key), table.get("source"), fmt::format("\"{}\"", name),
            "a key of [sources] that holds a text");
    }
  }

  Source check_origin(std::string_view key, const toml::table& table) const {
    constexpr std::string_view kWords =
        "one of spec, published, measured, calibrated, derived, assumed";
    const std::string word = member_text(key, table, "kind", kWords);
    check_source(key, table);
    try {
      return parse_source(word);
    } catch (const RuntimeError&) {
      wrong(fmt::format("{}.kind", key), table.get("kind"), fmt::format("\"{}\"", word), kWords);
    }
  }

  void check_order(std::string_view key, const toml::node& node, const Estimate& e) const {
    if (e.low > e.value) {
      wrong(key, &node, fmt::format("low {} above value {}", e.low, e.value), "low <= value");
    }
    if (e.value > e.high) {
      wrong(key, &node, fmt::format("value {} above high {}", e.value, e.high), "value <= high");
    }
  }

  void check_range(std::string_view key, std::string_view unit, const Estimate& e, double low,
                   double high) const {
    for (const double x : {e.low, e.value, e.high}) {
      if (x >= low && x <= high) continue;
      wrong(key, find(key), fmt::format("{} {}", x, unit),
            fmt::format("{} to {} {}", low, high, unit));
    }
  }

  void check_notes(std::string_view key, const toml::table& table) const {
    if (table.contains("note")) member_text(key, table, "note", "a text");
    const toml::node* alternatives = table.get("alternatives");
    if (alternatives == nullptr) return;
    const std::string name = fmt::format("{}.alternatives", key);
    constexpr std::string_view kExpected = "an array of tables { value, source, note }";
    if (!alternatives->is_array()) wrong(name, alternatives, describe(alternatives), kExpected);
    for (const toml::node& node : *alternatives->as_array()) {
      if (!node.is_table()) wrong(name, &node, describe(&node), kExpected);
      member_number(name, *node.as_table(), "value");
      check_source(name, *node.as_table());
    }
  }

  /// Leaves below `table` that nobody read.
  void check_all_read(const toml::table& table, const std::string& prefix) const {
    for (auto&& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      if (key == kSources || read.count(key) > 0) continue;
      const toml::table* child = node.as_table();
      if (child != nullptr && !child->empty() && !is_constant(node)) {
        check_all_read(*child, key + ".");
      } else {
        wrong(key, &node, "an unknown key", "only keys that this kind of preset has");
      }
    }
  }
};

PresetFile::PresetFile(std::unique_ptr<Document> document) : document_(std::move(document)) {}
PresetFile::PresetFile(PresetFile&&) noexcept = default;
PresetFile::~PresetFile() = default;

PresetFile PresetFile::parse(const std::string& text, const std::string& path) {
  auto document = std::make_unique<Document>();
  document->path = path;
  try {
    document->root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    const auto& begin = error.source().begin;
    fail<RuntimeError>("{}:{}:{}: {}", path, begin.line, begin.column, error.description());
  }
  return PresetFile(std::move(document));
}

PresetFile PresetFile::overlay(PresetFile base, PresetFile top) {
  top.document_->root.erase("inherits");
  overlay_table(base.document_->root, std::move(top.document_->root));
  base.document_->path = fmt::format("{} (inherits {})", top.document_->path, base.document_->path);
  return base;
}

bool PresetFile::has(std::string_view key) const { return document_->find(key) != nullptr; }

Estimate PresetFile::number(std::string_view key, std::string_view unit) const {
  Document& d = *document_;
  const toml::table& table =
      d.take_constant(key, "a constant { value, unit, kind, source }", kConstantKeys);
  Estimate result;
  result.value = d.member_number(key, table, "value");
  result.low = table.contains("low") ? d.member_number(key, table, "low") : result.value;
  result.high = table.contains("high") ? d.member_number(key, table, "high") : result.value;
  d.check_unit(key, table, "unit", unit);
  result.source = d.check_origin(key, table);
  d.check_order(key, table, result);
  d.check_notes(key, table);
  return result;
}

Estimate PresetFile::number(std::string_view key, std::string_view unit, double low,
                            double high) const {
  const Estimate result = number(key, unit);
  document_->check_range(key, unit, result, low, high);
  return result;
}

std::int64_t PresetFile::integer(std::string_view key, std::string_view unit) const {
  const Estimate result = number(key, unit);
  if (result.value != std::floor(result.value) || result.value > 9007199254740992.0) {
    document_->wrong(key, document_->find(key), fmt::format("{}", result.value), "a whole number");
  }
  return static_cast<std::int64_t>(result.value);
}

std::int64_t PresetFile::integer(std::string_view key, std::string_view unit, std::int64_t low,
                                 std::int64_t high) const {
  const std::int64_t result = integer(key, unit);
  if (result < low || result > high) {
    document_->wrong(key, document_->find(key), fmt::format("{} {}", result, unit),
                     fmt::format("{} to {} {}", low, high, unit));
  }
  return result;
}

PresetFile::Curve PresetFile::curve(std::string_view key, std::string_view x_unit,
                                    std::string_view unit) const {
  Document& d = *document_;
  const toml::table& table =
      d.take_constant(key, "a curve { x, y, x_unit, unit, kind, source }", kCurveKeys);
  const auto column = [&](std::string_view name) {
    const std::string full = fmt::format("{}.{}", key, name);
    const toml::node* node = table.get(name);
    if (node == nullptr || !node->is_array()) {
      d.wrong(full, node == nullptr ? &table : node, describe(node), "an array of numbers");
    }
    std::vector<double> numbers;
    for (const toml::node& item : *node->as_array()) {
      numbers.push_back(d.checked_number(full, &item, table));
    }
    return numbers;
  };
  Curve result;
  result.x = column("x");
  const std::vector<double> y = column("y");
  const std::vector<double> low = table.contains("low") ? column("low") : y;
  const std::vector<double> high = table.contains("high") ? column("high") : y;
  const std::size_t n = result.x.size();
  if (n == 0 || y.size() != n || low.size() != n || high.size() != n) {
    d.wrong(key, &table,
            fmt::format("{} x, {} y, {} low, {} high", n, y.size(), low.size(), high.size()),
            "as many of each, and at least one");
  }
  if (result.x[0] <= 0) d.wrong(fmt::format("{}.x", key), &table, "0", "x above 0");
  for (std::size_t i = 1; i < n; ++i) {
    if (result.x[i] > result.x[i - 1]) continue;
    d.wrong(fmt::format("{}.x", key), &table,
            fmt::format("{} after {}", result.x[i], result.x[i - 1]), "ascending x");
  }
  d.check_unit(key, table, "x_unit", x_unit);
  d.check_unit(key, table, "unit", unit);
  const Source source = d.check_origin(key, table);
  d.check_notes(key, table);
  for (std::size_t i = 0; i < n; ++i) {
    result.y.push_back({y[i], low[i], high[i], source});
    d.check_order(key, table, result.y.back());
  }
  return result;
}

PresetFile::Curve PresetFile::curve(std::string_view key, std::string_view x_unit,
                                    std::string_view unit, double low, double high) const {
  Curve result = curve(key, x_unit, unit);
  for (const Estimate& y : result.y) document_->check_range(key, unit, y, low, high);
  return result;
}

std::string PresetFile::text(std::string_view key) const {
  const toml::node& node = document_->take(key, "a text");
  if (!node.is_string()) document_->wrong(key, &node, describe(&node), "a text");
  return node.as_string()->get();
}

bool PresetFile::flag(std::string_view key) const {
  const toml::node& node = document_->take(key, "true or false");
  if (!node.is_boolean()) document_->wrong(key, &node, describe(&node), "true or false");
  return node.as_boolean()->get();
}

std::vector<std::int64_t> PresetFile::plain_integers(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of whole numbers";
  const toml::node& node = document_->take(key, kExpected);
  if (!node.is_array()) document_->wrong(key, &node, describe(&node), kExpected);
  std::vector<std::int64_t> result;
  for (const toml::node& item : *node.as_array()) {
    if (!item.is_integer()) document_->wrong(key, &item, describe(&item), kExpected);
    result.push_back(item.as_integer()->get());
  }
  return result;
}

std::vector<std::string> PresetFile::keys(std::string_view table) const {
  const toml::node* node = document_->find(table);
  if (node == nullptr || !node->is_table()) {
    document_->wrong(table, node, describe(node), "a table");
  }
  std::vector<std::string> result;
  for (auto&& [name, child] : *node->as_table()) result.emplace_back(name.str());
  std::sort(result.begin(), result.end());
  return result;
}

std::string PresetFile::source_text(std::string_view key) const {
  const toml::node* node = document_->find(key);
  if (node == nullptr || !is_constant(*node)) {
    document_->wrong(key, node, describe(node), "a constant");
  }
  const toml::table& table = *node->as_table();
  document_->check_source(key, table);
  const std::string name = document_->member_text(key, table, "source", "a key of [sources]");
  return document_->find_source(name)->as_string()->get();
}

void PresetFile::finish() const { document_->check_all_read(document_->root, ""); }

}  // namespace kvsim
