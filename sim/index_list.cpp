#include "sim/index_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr std::int64_t kMaxIndex = 1 << 24;

bool parse_index(std::string_view text, std::int64_t& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end && out >= 0 && out < kMaxIndex;
}

/// "7" or "7-9".
bool parse_range(std::string_view text, Range& out) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    if (!parse_index(text, out.begin)) return false;
    out.end = out.begin + 1;
    return true;
  }
  if (!parse_index(text.substr(0, dash), out.begin) ||
      !parse_index(text.substr(dash + 1), out.end) || out.end < out.begin) {
    return false;
  }
  ++out.end;
  return true;
}

/// "0, 7, 14, … 29": enough to see what there is.
std::string shown(std::span<const std::int64_t> available) {
  constexpr std::size_t kShown = 40;
  const std::size_t count = std::min(available.size(), kShown);
  const std::string list = fmt::format("{}", fmt::join(available.first(count), ", "));
  return available.size() > kShown ? fmt::format("{}, ... {}", list, available.back()) : list;
}

}  // namespace

IndexList IndexList::parse(std::string_view text, std::string flag) {
  IndexList list;
  list.flag_ = std::move(flag);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    Range range;
    if (!parse_range(text.substr(begin, end - begin), range)) {
      fail<UsageError>("{} {}: found '{}', expected indices and ranges such as 0,7-9", list.flag_,
                       text, text.substr(begin, end - begin));
    }
    list.ranges_.push_back(range);
    begin = end + 1;
  }
  return list;
}

std::vector<std::int64_t> IndexList::pick(std::span<const std::int64_t> available,
                                          std::string_view where) const {
  if (everything()) return {available.begin(), available.end()};
  std::set<std::int64_t> picked;
  for (const Range& range : ranges_) {
    for (std::int64_t index = range.begin; index < range.end; ++index) {
      if (!std::binary_search(available.begin(), available.end(), index)) {
        fail<UsageError>("{}: {} has no {}, only {}", flag_, where, index, shown(available));
      }
      picked.insert(index);
    }
  }
  return {picked.begin(), picked.end()};
}

}  // namespace kvsim
