#include "sim/method_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kvsim {
namespace {

constexpr std::size_t kLineWidth = 120;
constexpr double kPjPerUj = 1e6;

/// Significant digits without an exponent where that is readable.
std::string digits_of(double value, int digits) {
  const double size = std::abs(value);
  if (size >= std::pow(10, digits) && size < 1e7) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}g}", value, digits);
}

std::string text_of(const Json& number, double unit, int digits) {
  if (number.is_null()) return "-";
  if (number.is_number_integer() && unit == 1) return fmt::format("{}", number.get<std::int64_t>());
  return digits_of(number.get<double>() / unit, digits);
}

}  // namespace

std::string number_text(const Json& number, double unit) { return text_of(number, unit, 4); }

std::string whole_text(const Json& number) { return fmt::format("{:.0f}", number.get<double>()); }

std::string interval_text(const Json& estimate, double unit) {
  if (estimate.is_null()) return "-";
  const auto bound = [&](const char* key) { return text_of(estimate.at(key), unit, 3); };
  return fmt::format("{} [{}, {}]", bound("value"), bound("low"), bound("high"));
}

MethodTable::MethodTable(const Json& methods) : methods_(methods) {
  std::vector<std::string> names(2);  // two empty lines of head
  for (const Json& method : methods) names.push_back(method.at("spec").get<std::string>());
  add_column(std::move(names));
}

void MethodTable::add_column(std::vector<std::string> cells) {
  Column column{std::move(cells), 0, std::exchange(begin_block_, false)};
  for (const std::string& cell : column.cells) {
    column.width = std::max(column.width, display_width(cell));
  }
  columns_.push_back(std::move(column));
}

void MethodTable::figure(const std::string& name, const Cell& cell) {
  const std::size_t comma = name.rfind(", ");
  std::vector<std::string> cells{name.substr(0, comma)};
  cells.push_back(comma == std::string::npos ? std::string() : name.substr(comma + 2));
  for (const Json& method : methods_) cells.push_back(cell(method));
  add_column(std::move(cells));
}

void MethodTable::number(const std::string& name, const std::string& pointer, double unit) {
  figure(name, [&](const Json& method) {
    return number_text(method.at(Json::json_pointer(pointer)), unit);
  });
}

void MethodTable::interval(const std::string& name, const std::string& pointer, double unit) {
  figure(name, [&](const Json& method) {
    return interval_text(method.at(Json::json_pointer(pointer)), unit);
  });
}

std::string MethodTable::text() const {
  std::string text;
  for (std::size_t first = 1; first < columns_.size();) {
    std::vector<std::size_t> block{0};
    std::size_t width = columns_[0].width;
    while (first < columns_.size() &&
           (block.size() == 1 ||
            (!columns_[first].begins_block && width + 2 + columns_[first].width <= kLineWidth))) {
      width += 2 + columns_[first].width;
      block.push_back(first++);
    }
    const auto line = [&](std::size_t row) {
      std::vector<std::string> cells;
      for (const std::size_t column : block) cells.push_back(columns_[column].cells[row]);
      return cells;
    };
    Table table(line(0));
    for (std::size_t row = 1; row < columns_[0].cells.size(); ++row) table.add_row(line(row));
    if (!text.empty()) text += '\n';
    text += table.text();
  }
  return text;
}

void MethodTable::preparation() {
  const bool any = std::any_of(methods_.begin(), methods_.end(), [](const Json& method) {
    return !method.at("prepare").at("terms").empty();
  });
  if (!any) return;
  new_block();
  interval("preparation, us", "/prepare/predicted_us");
  number("its DRAM, kB", "/prepare/bytes", 1e3);
  number("repaid after, tokens", "/prepare/repaid_after_tokens");
}

void MethodTable::accelerators() {
  if (methods_.empty()) return;
  const Json& first = methods_[0].at("accelerators");
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::string name =
        fmt::format("{} {} nm {}", first[i].at("name").get<std::string>(),
                    number_text(first[i].at("node_nm")), first[i].at("memory").get<std::string>());
    const std::string base = fmt::format("/accelerators/{}", i);
    interval(name + ", uJ", base + "/total_pj", kPjPerUj);
    interval("its datapath, uJ", base + "/datapath_pj", kPjPerUj);
  }
}

}  // namespace kvsim
