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

class FootprintCounter {
 public:
  explicit FootprintCounter(const MemorySystem& memory)
      : sectors_(memory.sector_bytes), atoms_(memory.atom_bytes), pages_(memory.row_bytes) {}

  /// Rows [begin, end) of the tensor, in order.
  void add_rows(double begin, double end, RowSize row) {
    if (row.stride <= row.bytes) return add(begin * row.stride, end * row.stride);
    for (double i = begin; i < end; ++i) add(i * row.stride, i * row.stride + row.bytes);
  }
  /// What follows is another run, even if it is adjacent.
  void cut() { end_ = -1; }
  Footprint footprint() const {
    return {sectors_.bytes(), atoms_.bytes(), pages_.count(), static_cast<double>(runs_)};
  }

 private:
  /// Bytes [begin, end) of the tensor; `begin` must not fall.
  void add(double begin, double end) {
    sectors_.add(begin, end);
    atoms_.add(begin, end);
    pages_.add(begin, end);
    if (begin > end_ + kTolerance) ++runs_;
    end_ = end;
  }

  GranuleCounter sectors_;
  GranuleCounter atoms_;
  GranuleCounter pages_;
  double end_ = -1;
  std::int64_t runs_ = 0;
};

void count_head_major(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row,
                      FootprintCounter& counter) {
  for (std::size_t head = 0; head < rows.size(); ++head) {
    const double base = static_cast<double>(head) * static_cast<double>(tokens);
    for (const Range& range : rows[head].ranges()) {
      counter.add_rows(base + static_cast<double>(range.begin),
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
  if (reading == heads) {
    counter.add_rows(static_cast<double>(segment.begin) * rows_of_token,
                     static_cast<double>(segment.end) * rows_of_token, row);
    return;
  }
  for (std::int64_t token = segment.begin; token < segment.end; ++token) {
    for (std::size_t head = 0; head < heads; ++head) {
      if (active[head] == 0) continue;
      const double number = static_cast<double>(token) * rows_of_token + static_cast<double>(head);
      counter.add_rows(number, number + 1, row);
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
    counter.add_rows(static_cast<double>(piece.begin), static_cast<double>(piece.end), row_size);
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

}  // namespace

Footprint exact_footprint(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row,
                          const CacheLayout& layout, const MemorySystem& memory) {
  for (const RowRanges& set : rows) {
    KVSIM_CHECK(set.empty() ||
                (set.ranges().front().begin >= 0 && set.ranges().back().end <= tokens));
  }
  FootprintCounter counter(memory);
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
