#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"
#include "models/memory/traffic.h"

namespace kvsim {
namespace {

constexpr std::array<std::pair<std::string_view, LayoutKind>, 3> kLayouts{
    {{"hnd", LayoutKind::kHnd}, {"nhd", LayoutKind::kNhd}, {"paged", LayoutKind::kPaged}}};

}  // namespace

std::string_view to_string(LayoutKind kind) {
  return kLayouts[static_cast<std::size_t>(kind)].first;
}

CacheLayout parse_cache_layout(std::string_view text) {
  for (const auto& [name, kind] : kLayouts) {
    if (text == name) return {kind};
  }
  constexpr std::string_view kPagedPrefix = "paged:";
  if (text.substr(0, kPagedPrefix.size()) == kPagedPrefix) {
    const std::string_view digits = text.substr(kPagedPrefix.size());
    int tokens = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), tokens);
    if (error == std::errc() && end == digits.data() + digits.size() && tokens > 0) {
      return {LayoutKind::kPaged, tokens};
    }
  }
  fail<UsageError>("unknown cache layout '{}', expected hnd, nhd, paged or paged:TOKENS", text);
}

CacheState parse_cache_state(std::string_view text) {
  if (text == "cold") return CacheState::kCold;
  if (text == "warm") return CacheState::kWarm;
  fail<UsageError>("unknown cache state '{}', expected cold or warm", text);
}

std::string_view to_string(CacheState state) {
  return state == CacheState::kCold ? "cold" : "warm";
}

void add_page_table(Work& work, const Shape& shape, const CacheLayout& layout) {
  if (layout.kind != LayoutKind::kPaged) return;
  constexpr double kPageNumberBytes = 4;
  double pages = 0;
  for (const std::int64_t context : shape.contexts) {
    pages += std::ceil(static_cast<double>(context) / layout.page_tokens);
  }
  bool known = false;  // later stages of a launch have the numbers
  for (Stage& stage : work.stages) {
    known = known && stage.before != Boundary::kKernelLaunch;
    if (known) continue;
    double rows = 0;  // of one tensor: K and V share the pages' numbers
    for (const Access& access : stage.accesses) {
      const bool of_cache = access.tensor == Tensor::kK || access.tensor == Tensor::kV;
      if (!of_cache || access.direction != Direction::kRead || access.rows <= 0) continue;
      // A feature lies in every page.
      const bool all = access.row_set == RowSet::kKFeatures;
      rows = std::max(rows, all ? shape.total_context() * shape.kv_heads : access.rows);
    }
    if (rows <= 0) continue;
    known = true;
    // Few rows lie in few pages; every KV head looks up its own.
    stage.read(Tensor::kPageTable, kPageNumberBytes, std::min(pages, rows),
               std::min(pages * shape.kv_heads, rows));
    stage.dependent_trips += 1;
  }
}

}  // namespace kvsim
