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

  /// Bytes [begin, end) of the tensor; `begin` must not fall.
  void add(double begin, double end) {
    sectors_.add(begin, end);
    atoms_.add(begin, end);
    pages_.add(begin, end);
    if (begin > end_ + kTolerance) ++runs_;
    end_ = end;
  }
  Footprint footprint() const {
    return {sectors_.bytes(), atoms_.bytes(), pages_.count(), static_cast<double>(runs_)};
  }

 private:
  GranuleCounter sectors_;
  GranuleCounter atoms_;
  GranuleCounter pages_;
  double end_ = -1;
  std::int64_t runs_ = 0;
};

void count_head_major(std::span<const RowRanges> rows, std::int64_t tokens, double row_bytes,
                      FootprintCounter& counter) {
  for (std::size_t head = 0; head < rows.size(); ++head) {
    const double base = static_cast<double>(head) * static_cast<double>(tokens);
    for (const Range& range : rows[head].ranges()) {
      counter.add((base + static_cast<double>(range.begin)) * row_bytes,
                  (base + static_cast<double>(range.end)) * row_bytes);
    }
  }
}

/// The heads' ranges of one segment of tokens in which no range begins or ends.
void count_token_segment(const std::vector<char>& active, Range segment, double row_bytes,
                         FootprintCounter& counter) {
  const std::size_t heads = active.size();
  const auto reading = static_cast<std::size_t>(std::count(active.begin(), active.end(), 1));
  if (reading == 0) return;
  const double token_bytes = static_cast<double>(heads) * row_bytes;
  if (reading == heads) {
    counter.add(static_cast<double>(segment.begin) * token_bytes,
                static_cast<double>(segment.end) * token_bytes);
    return;
  }
  for (std::int64_t token = segment.begin; token < segment.end; ++token) {
    const double base = static_cast<double>(token) * token_bytes;
    for (std::size_t head = 0; head < heads; ++head) {
      if (active[head] == 0) continue;
      counter.add(base + static_cast<double>(head) * row_bytes,
                  base + static_cast<double>(head + 1) * row_bytes);
    }
  }
}

/// Tokens come first, so the heads' ranges are walked together, from one range border to the next.
void count_token_major(std::span<const RowRanges> rows, double row_bytes,
                       FootprintCounter& counter) {
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
    count_token_segment(active, segment, row_bytes, counter);
  }
}

/// A fixed pseudo-random order of `pages` pages: where in memory the page with that number lies.
std::vector<std::int64_t> page_slots(std::int64_t pages) {
  constexpr std::uint64_t kKey = 0x7061676573ull;  // any fixed number: nothing is estimated from it
  std::vector<std::int64_t> slots(static_cast<std::size_t>(pages));
  std::iota(slots.begin(), slots.end(), 0);
  for (std::size_t i = slots.size(); i > 1; --i) {
    const std::uint64_t word = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0}}, kKey).word[0];
    std::swap(slots[i - 1], slots[static_cast<std::size_t>((word * i) >> 32)]);
  }
  return slots;
}

void count_paged(std::span<const RowRanges> rows, std::int64_t tokens, double row_bytes,
                 std::int64_t page_tokens, FootprintCounter& counter) {
  struct Bytes {
    double begin;
    double end;
  };
  const std::vector<std::int64_t> slots = page_slots((tokens + page_tokens - 1) / page_tokens);
  std::vector<Bytes> pieces;
  for (std::size_t head = 0; head < rows.size(); ++head) {
    for (const Range& range : rows[head].ranges()) {
      for (std::int64_t begin = range.begin; begin < range.end;) {
        const std::int64_t page = begin / page_tokens;
        const std::int64_t end = std::min(range.end, (page + 1) * page_tokens);
        const std::int64_t block =
            slots[static_cast<std::size_t>(page)] * static_cast<std::int64_t>(rows.size()) +
            static_cast<std::int64_t>(head);
        const std::int64_t row = block * page_tokens + (begin - page * page_tokens);
        pieces.push_back({static_cast<double>(row) * row_bytes,
                          static_cast<double>(row + end - begin) * row_bytes});
        begin = end;
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
  for (const Bytes& piece : pieces) counter.add(piece.begin, piece.end);
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

/// Share of row borders that fall on a granule border: 1 / q for the smallest q with q rows = whole
/// granules.
double aligned_share(double row_bytes, int granule) {
  const double bits = row_bytes * 8;
  if (std::abs(bits - std::round(bits)) > kTolerance) return 0;
  const std::int64_t granule_bits = std::int64_t{8} * granule;
  return static_cast<double>(std::gcd(std::llround(bits), granule_bits)) /
         static_cast<double>(granule_bits);
}

struct RandomRows {
  double rows;
  double tokens;
  int heads;
  double row_bytes;
  bool token_major;

  /// Expected number of granules that hold a part of a drawn row. A granule overlaps one row more
  /// than there are row borders strictly inside it; their number takes two neighbouring values,
  /// mixed so that the mean is right.
  double granules(int granule) const {
    const double all = heads * tokens * row_bytes / granule;
    if (rows >= tokens) return std::ceil(all - kTolerance);
    const double per_granule = granule / row_bytes;
    const double inside = (1 - aligned_share(row_bytes, granule)) * per_granule;
    const int fewer = static_cast<int>(std::ceil(per_granule - kTolerance)) - 1;
    const double share_of_more = std::clamp(inside - fewer, 0.0, 1.0);
    double untouched = (1 - share_of_more) * missed_by(fewer + 1);
    if (share_of_more > 0) untouched += share_of_more * missed_by(fewer + 2);
    return all * (1 - untouched);
  }

 private:
  double missed_by(int m) const {
    return token_major ? missed_interleaved(rows, tokens, m, heads) : missed(rows, tokens, m);
  }
};

}  // namespace

Footprint exact_footprint(std::span<const RowRanges> rows, std::int64_t tokens, double row_bytes,
                          const CacheLayout& layout, const MemorySystem& memory) {
  for (const RowRanges& set : rows) {
    KVSIM_CHECK(set.empty() ||
                (set.ranges().front().begin >= 0 && set.ranges().back().end <= tokens));
  }
  FootprintCounter counter(memory);
  switch (layout.kind) {
    case LayoutKind::kHnd:
      count_head_major(rows, tokens, row_bytes, counter);
      break;
    case LayoutKind::kNhd:
      count_token_major(rows, row_bytes, counter);
      break;
    case LayoutKind::kPaged:
      count_paged(rows, tokens, row_bytes, layout.page_tokens, counter);
      break;
  }
  return counter.footprint();
}

Footprint expected_footprint(double rows, double tokens, int kv_heads, double row_bytes,
                             const CacheLayout& layout, const MemorySystem& memory) {
  if (rows <= 0 || tokens <= 0 || row_bytes <= 0) return {};
  // In a paged cache a granule over the border of two blocks holds rows of another head or page:
  // drawn as independently as any, so pages need no case of their own.
  const RandomRows random{rows, tokens, kv_heads, row_bytes, layout.kind == LayoutKind::kNhd};
  const double runs = rows >= tokens ? 1 : kv_heads * rows * (tokens - rows + 1) / tokens;
  return {random.granules(memory.sector_bytes) * memory.sector_bytes,
          random.granules(memory.atom_bytes) * memory.atom_bytes, random.granules(memory.row_bytes),
          runs};
}

}  // namespace kvsim
