#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "models/memory/traffic.h"

namespace kvsim {
namespace {

// Rows of a fractional number of bytes (4-bit elements with shared scales) begin inside a byte; the
// tolerance keeps rounding errors of an address from touching the next granule.
constexpr double kTolerance = 1e-6;

/// Granules of one size under byte intervals that come in ascending order, each counted once.
class GranuleCounter {
 public:
  explicit GranuleCounter(int bytes) : bytes_(bytes) {}

  void add(double begin, double end) {
    const auto first =
        std::max(static_cast<std::int64_t>(std::floor((begin + kTolerance) / bytes_)), next_);
    const auto last = static_cast<std::int64_t>(std::ceil((end - kTolerance) / bytes_));
    if (last <= first) return;
    count_ += last - first;
    next_ = last;
  }
  double count() const { return static_cast<double>(count_); }
  double bytes() const { return count() * bytes_; }

 private:
  double bytes_;
  std::int64_t next_ = 0;  // the first granule not yet counted
  std::int64_t count_ = 0;
};

/// Bytes of a row.
struct Part {
  double begin = 0;
  double end = 0;
};

class FootprintCounter {
 public:
  /// `parts` of each head's rows are read; none given: whole rows.
  explicit FootprintCounter(const MemorySystem& memory,
                            std::span<const std::vector<Part>> parts = {})
      : sector_bytes_(memory.sector_bytes),
        sectors_(memory.sector_bytes),
        atoms_(memory.atom_bytes),
        pages_(memory.row_bytes),
        parts_(parts) {}

  bool whole_rows() const { return parts_.empty(); }

  /// Rows [begin, end) of the tensor, in order.
  void add_rows(double begin, double end, RowSize row) {
    if (row.stride <= row.bytes) return add(begin * row.stride, end * row.stride);
    for (double i = begin; i < end; ++i) add(i * row.stride, i * row.stride + row.bytes);
  }
  /// The same for one head's rows.
  void add_rows_of(std::size_t head, double begin, double end, RowSize row) {
    if (whole_rows() || reads_whole_rows(head, row)) return add_rows(begin, end, row);
    for (double i = begin; i < end; ++i) {
      for (const Part& part : parts_[head]) {
        add_sectors(i * row.stride + part.begin, i * row.stride + part.end);
      }
    }
  }
  /// Bytes [begin, end) in whole sectors, so that what shares one is one run.
  void add_sectors(double begin, double end) {
    add(std::floor((begin + kTolerance) / sector_bytes_) * sector_bytes_,
        std::ceil((end - kTolerance) / sector_bytes_) * sector_bytes_);
  }
  /// What follows is another run, even if it is adjacent.
  void cut() { end_ = -1; }
  Footprint footprint() const {
    return {sectors_.bytes(), atoms_.bytes(), pages_.count(), static_cast<double>(runs_)};
  }

 private:
  bool reads_whole_rows(std::size_t head, RowSize row) const {
    const std::vector<Part>& parts = parts_[head];
    return parts.size() == 1 && parts[0].begin <= 0 && parts[0].end >= row.bytes;
  }
  /// Bytes [begin, end) of the tensor; `begin` must not fall.
  void add(double begin, double end) {
    sectors_.add(begin, end);
    atoms_.add(begin, end);
    pages_.add(begin, end);
    if (begin > end_ + kTolerance) ++runs_;
    end_ = std::max(end_, end);
  }

  double sector_bytes_;
  GranuleCounter sectors_;
  GranuleCounter atoms_;
  GranuleCounter pages_;
  std::span<const std::vector<Part>> parts_;
  double end_ = -1;
  std::int64_t runs_ = 0;
};

void count_head_major(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row,
                      FootprintCounter& counter) {
  for (std::size_t head = 0; head < rows.size(); ++head) {
    const double base = static_cast<double>(head) * static_cast<double>(tokens);
    for (const Range& range : rows[head].ranges()) {
      counter.add_rows_of(head, base + static_cast<double>(range.begin),
                          base + static_cast<double>(range.end), row);
    }
  }
}

/// The heads' ranges of one segment of tokens in which no range begins or ends.
void count_token_segment(const std::vector<char>& active, Range segment, RowSize row,
                         FootprintCounter& counter) {
  const std::size_t heads = active.size();
  const auto reading = static_cast<std::size_t>(std::count(active.begin(), active.end(), 1));
  if (reading == 0) return;
  const auto rows_of_token = static_cast<double>(heads);
  if (reading == heads && counter.whole_rows()) {
    counter.add_rows(static_cast<double>(segment.begin) * rows_of_token,
                     static_cast<double>(segment.end) * rows_of_token, row);
    return;
  }
  for (std::int64_t token = segment.begin; token < segment.end; ++token) {
    for (std::size_t head = 0; head < heads; ++head) {
      if (active[head] == 0) continue;
      const double number = static_cast<double>(token) * rows_of_token + static_cast<double>(head);
      counter.add_rows_of(head, number, number + 1, row);
    }
  }
}

/// Tokens come first, so the heads' ranges are walked together, from one range border to the next.
void count_token_major(std::span<const RowRanges> rows, RowSize row, FootprintCounter& counter) {
  const std::size_t heads = rows.size();
  std::vector<std::int64_t> borders;
  for (const RowRanges& set : rows) {
    for (const Range& range : set.ranges()) {
      borders.push_back(range.begin);
      borders.push_back(range.end);
    }
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<std::size_t> next(heads, 0);  // per head, the first range not yet passed
  std::vector<char> active(heads, 0);
  for (std::size_t i = 1; i < borders.size(); ++i) {
    const Range segment{borders[i - 1], borders[i]};
    for (std::size_t head = 0; head < heads; ++head) {
      const std::vector<Range>& ranges = rows[head].ranges();
      while (next[head] < ranges.size() && ranges[next[head]].end <= segment.begin) ++next[head];
      active[head] = next[head] < ranges.size() && ranges[next[head]].begin <= segment.begin;
    }
    count_token_segment(active, segment, row, counter);
  }
}

/// A fixed pseudo-random order of pages, of which `full` are full: where in memory the page with
/// that number lies. The one being filled was taken last and lies behind the others.
std::vector<std::int64_t> page_slots(std::int64_t pages, std::int64_t full) {
  constexpr std::uint64_t kKey = 0x7061676573ull;  // any fixed number: nothing is estimated from it
  std::vector<std::int64_t> slots(static_cast<std::size_t>(pages));
  std::iota(slots.begin(), slots.end(), 0);
  for (auto i = static_cast<std::size_t>(full); i > 1; --i) {
    const std::uint64_t word = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0}}, kKey).word[0];
    std::swap(slots[i - 1], slots[static_cast<std::size_t>((word * i) >> 32)]);
  }
  return slots;
}

void count_paged(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row_size,
                 std::int64_t page_tokens, FootprintCounter& counter) {
  const std::vector<std::int64_t> slots =
      page_slots((tokens + page_tokens - 1) / page_tokens, tokens / page_tokens);
  struct Piece {  // rows of one page and head
    std::int64_t begin;
    std::int64_t end;
    std::int64_t block;
  };
  std::vector<Piece> pieces;
  for (std::size_t head = 0; head < rows.size(); ++head) {
    for (const Range& range : rows[head].ranges()) {
      for (std::int64_t begin = range.begin; begin < range.end;) {
        const std::int64_t page = begin / page_tokens;
        const std::int64_t end = std::min(range.end, (page + 1) * page_tokens);
        const std::int64_t block =
            slots[static_cast<std::size_t>(page)] * static_cast<std::int64_t>(rows.size()) +
            static_cast<std::int64_t>(head);
        const std::int64_t first = block * page_tokens + (begin - page * page_tokens);
        pieces.push_back({first, first + end - begin, block});
        begin = end;
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::int64_t block = -1;
  for (const Piece& piece : pieces) {
    if (piece.block != block) counter.cut();
    block = piece.block;
    const auto head = static_cast<std::size_t>(block) % rows.size();
    counter.add_rows_of(head, static_cast<double>(piece.begin), static_cast<double>(piece.end),
                        row_size);
  }
}

/// Every row of every head, as the exact counts see it.
Footprint whole_footprint(double tokens, int heads, RowSize row, const CacheLayout& layout,
                          const MemorySystem& memory) {
  FootprintCounter counter(memory);
  if (layout.kind != LayoutKind::kPaged) {
    counter.add_rows(0, heads * tokens, row);
    return counter.footprint();
  }
  const double page = layout.page_tokens;
  const double full = std::floor(tokens / page);
  const double rest = tokens - full * page;
  counter.add_rows(0, full * heads * page, row);
  for (int head = 0; head < heads && rest > 0; ++head) {
    const double first = (full * heads + head) * page;
    counter.add_rows(first, first + rest, row);
  }
  Footprint footprint = counter.footprint();
  if (row.stride <= row.bytes) footprint.runs = heads * (full + (rest > 0 ? 1 : 0));
  return footprint;
}

/// Probability that none of `drawn` rows, drawn at random out of `tokens`, is one of `m` given
/// ones.
double missed(double drawn, double tokens, int m) {
  double p = 1;
  for (int i = 0; i < m && p > 0; ++i) {
    p *= std::max(0.0, tokens - drawn - i) / std::max(1.0, tokens - i);
  }
  return p;
}

/// The same for `m` neighbouring rows of a token-major cache, where `heads` heads draw
/// independently.
double missed_interleaved(double drawn, double tokens, int m, int heads) {
  const int each = m / heads;  // rows of every head, and one more of the first m % heads
  return std::pow(missed(drawn, tokens, each), heads - m % heads) *
         std::pow(missed(drawn, tokens, each + 1), m % heads);
}

/// Distance of the places at which rows begin within granules: their greatest common divisor; 0
/// for rows that may begin anywhere.
double grid_bytes(double stride, int granule) {
  const double bits = stride * 8;
  if (std::abs(bits - std::round(bits)) > kTolerance) return 0;
  return static_cast<double>(std::gcd(std::llround(bits), std::int64_t{8} * granule)) / 8;
}

struct RandomRows {
  double rows = 0;
  double tokens = 0;
  int heads = 0;
  RowSize row;
  bool token_major = false;

  /// Expected number of granules that hold a part of a drawn row. A granule overlaps a row that
  /// begins less than the row's bytes before it or less than a granule after its begin; the number
  /// of rows it overlaps takes two neighbouring values, mixed so that the mean is right.
  double granules(int granule) const {
    const double all = heads * tokens * row.stride / granule;
    const double grid = grid_bytes(row.stride, granule);
    const double bytes = grid > 0 ? std::ceil(row.bytes / grid - kTolerance) * grid : row.bytes;
    const double overlapped = (granule + bytes - grid) / row.stride;
    const int fewer = static_cast<int>(std::floor(overlapped + kTolerance));
    const double share_of_more = std::max(0.0, overlapped - fewer);
    double untouched = (1 - share_of_more) * missed_by(fewer);
    if (share_of_more > 0) untouched += share_of_more * missed_by(fewer + 1);
    return all * (1 - untouched);
  }

  /// Expected number of runs of adjacent rows, in pieces of `page` tokens. Drawing m of n rows
  /// leaves m (n - m + 1) / n runs; each border between pages cuts one if both sides are drawn.
  double runs(double page) const {
    if (row.stride > row.bytes) return heads * rows;
    const double borders = std::ceil(tokens / page) - 1;
    const double both = tokens > 1 ? rows / tokens * std::max(0.0, rows - 1) / (tokens - 1) : 0;
    return heads * (rows * (tokens - rows + 1) / tokens + borders * both);
  }

 private:
  double missed_by(int m) const {
    return token_major ? missed_interleaved(rows, tokens, m, heads) : missed(rows, tokens, m);
  }
};

void count_rows(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row,
                const CacheLayout& layout, FootprintCounter& counter) {
  for (const RowRanges& set : rows) {
    KVSIM_CHECK(set.empty() ||
                (set.ranges().front().begin >= 0 && set.ranges().back().end <= tokens));
  }
  switch (layout.kind) {
    case LayoutKind::kHnd:
      count_head_major(rows, tokens, row, counter);
      break;
    case LayoutKind::kNhd:
      count_token_major(rows, row, counter);
      break;
    case LayoutKind::kPaged:
      count_paged(rows, tokens, row, layout.page_tokens, counter);
      break;
  }
}

/// The bytes of a row that hold `features`; in whole sectors where every row begins with one.
std::vector<Part> parts_of(const RowRanges& features, double row_bytes, int head_dim,
                           double sector_bytes) {
  const double element_bytes = row_bytes / head_dim;
  const bool aligned = std::fmod(row_bytes, sector_bytes) == 0;
  std::vector<Part> parts;
  for (const Range& range : features.ranges()) {
    Part part{static_cast<double>(range.begin) * element_bytes,
              static_cast<double>(range.end) * element_bytes};
    if (aligned) {
      part = {std::floor(part.begin / sector_bytes) * sector_bytes,
              std::ceil(part.end / sector_bytes) * sector_bytes};
    }
    if (!parts.empty() && part.begin <= parts.back().end) {
      parts.back().end = part.end;
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

/// One feature of the tokens [begin, end) among `read` ones; the feature's bytes begin at `base`.
void count_feature(const RowRanges& read, Range tokens, double base, double element_bytes,
                   FootprintCounter& counter) {
  for (const Range& range : read.ranges()) {
    const std::int64_t begin = std::max(range.begin, tokens.begin);
    const std::int64_t end = std::min(range.end, tokens.end);
    if (begin >= end) continue;
    counter.add_sectors(base + static_cast<double>(begin - tokens.begin) * element_bytes,
                        base + static_cast<double>(end - tokens.begin) * element_bytes);
  }
}

/// The features of all heads in one array [kv_head][head_dim][width] that holds `tokens`, the
/// `slot`-th of its kind.
void count_features(const KeyReads& keys, Range tokens, double slot, double width,
                    FootprintCounter& counter) {
  const double element_bytes = keys.row_bytes / keys.head_dim;
  const auto heads = static_cast<double>(keys.rows.size());
  for (std::size_t head = 0; head < keys.rows.size(); ++head) {
    const double first = (slot * heads + static_cast<double>(head)) * keys.head_dim;
    for (const Range& range : keys.features[head].ranges()) {
      for (std::int64_t feature = range.begin; feature < range.end; ++feature) {
        const double base = (first + static_cast<double>(feature)) * width * element_bytes;
        count_feature(keys.rows[head], tokens, base, element_bytes, counter);
      }
    }
  }
}

}  // namespace

Footprint exact_footprint(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row,
                          const CacheLayout& layout, const MemorySystem& memory) {
  FootprintCounter counter(memory);
  count_rows(rows, tokens, row, layout, counter);
  return counter.footprint();
}

Footprint exact_key_footprint(const KeyReads& keys, const CacheLayout& layout,
                              const MemorySystem& memory) {
  const bool whole = std::all_of(
      keys.features.begin(), keys.features.end(),
      [&](const RowRanges& features) { return features == RowRanges::all(keys.head_dim); });
  if (whole) {
    return exact_footprint(keys.rows, keys.tokens, packed(keys.row_bytes), layout, memory);
  }
  std::vector<std::vector<Part>> parts;
  for (const RowRanges& features : keys.features) {
    parts.push_back(parts_of(features, keys.row_bytes, keys.head_dim, memory.sector_bytes));
  }
  FootprintCounter counter(memory, parts);
  count_rows(keys.rows, keys.tokens, packed(keys.row_bytes), layout, counter);
  return counter.footprint();
}

Footprint exact_feature_footprint(const KeyReads& keys, const CacheLayout& layout,
                                  const MemorySystem& memory) {
  FootprintCounter counter(memory);
  if (layout.kind != LayoutKind::kPaged) {
    count_features(keys, {0, keys.tokens}, 0, static_cast<double>(keys.tokens), counter);
    return counter.footprint();
  }
  const std::int64_t width = layout.page_tokens;
  const std::vector<std::int64_t> slots =
      page_slots((keys.tokens + width - 1) / width, keys.tokens / width);
  std::vector<std::int64_t> page_of(slots.size());
  for (std::size_t page = 0; page < slots.size(); ++page) {
    page_of[static_cast<std::size_t>(slots[page])] = static_cast<std::int64_t>(page);
  }
  for (std::size_t slot = 0; slot < page_of.size(); ++slot) {
    const Range tokens{page_of[slot] * width, std::min((page_of[slot] + 1) * width, keys.tokens)};
    counter.cut();  // a page is read by itself
    count_features(keys, tokens, static_cast<double>(slot), static_cast<double>(width), counter);
  }
  return counter.footprint();
}

Footprint expected_footprint(double rows, double tokens, int kv_heads, RowSize row,
                             const CacheLayout& layout, const MemorySystem& memory) {
  if (rows <= 0 || tokens <= 0 || row.bytes <= 0) return {};
  if (rows >= tokens) return whole_footprint(tokens, kv_heads, row, layout, memory);
  // In a paged cache a granule over the border of two blocks holds rows of another head or page:
  // drawn as independently as any, so its granules need no case of their own.
  const RandomRows random{rows, tokens, kv_heads, row, layout.kind == LayoutKind::kNhd};
  const double page = layout.kind == LayoutKind::kPaged ? layout.page_tokens : tokens;
  return {random.granules(memory.sector_bytes) * memory.sector_bytes,
          random.granules(memory.atom_bytes) * memory.atom_bytes, random.granules(memory.row_bytes),
          random.runs(page)};
}

}  // namespace kvsim
