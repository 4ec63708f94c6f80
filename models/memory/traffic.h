#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/row_ranges.h"
#include "kernels/shape.h"
#include "kernels/work.h"
#include "models/machine.h"

namespace kvsim {

/// A row of a tensor: its bytes, and those from its begin to that of the next row, which are more
/// where only a part of the row is meant (V of a latent cache).
struct RowSize {
  double bytes = 0;
  double stride = 0;
};
inline RowSize packed(double bytes) { return {bytes, bytes}; }

/// How a layer's K (or V) rows lie in memory. hnd: [kv_head][token][dim]; nhd:
/// [token][kv_head][dim]; paged: pages of `page_tokens` tokens, each page [kv_head][token][dim],
/// pages in random order, but a last one that is not full behind the others.
enum class LayoutKind { kHnd, kNhd, kPaged };
struct CacheLayout {
  LayoutKind kind = LayoutKind::kHnd;
  int page_tokens = 16;
};
std::string_view to_string(LayoutKind kind);
/// "hnd", "nhd", "paged" or "paged:64". Throws UsageError.
CacheLayout parse_cache_layout(std::string_view text);

enum class CacheState { kCold, kWarm };
/// "cold" or "warm". Throws UsageError.
CacheState parse_cache_state(std::string_view text);
std::string_view to_string(CacheState state);

/// Bytes after rounding row sets up to whole sectors and whole DRAM atoms, the DRAM pages (blocks
/// of MemorySystem::row_bytes addresses) touched, and the runs of adjacent rows. A run ends with
/// its page: what lies behind it in memory is another page's, which is read at another time.
struct Footprint {
  double sector_bytes = 0;
  double atom_bytes = 0;
  double activations = 0;
  double runs = 0;
  Footprint& operator+=(const Footprint& o) {
    sector_bytes += o.sector_bytes;
    atom_bytes += o.atom_bytes;
    activations += o.activations;
    runs += o.runs;
    return *this;
  }
};

/// Exact footprint of the rows that the KV heads of one layer and sequence read from one tensor.
/// `rows[h]` are the rows of KV head h (its union), counted from token 0 of the cache; `tokens` is
/// how many rows the cache holds. Sectors and atoms shared by neighbouring rows (or, in nhd, by
/// neighbouring heads) count once.
Footprint exact_footprint(std::span<const RowRanges> rows, std::int64_t tokens, RowSize row,
                          const CacheLayout& layout, const MemorySystem& memory);

/// What the KV heads of one layer and sequence read from K when scores leave out features.
struct KeyReads {
  std::span<const RowRanges> rows;      // [kv_heads], as above
  std::span<const RowRanges> features;  // [kv_heads], of these rows
  std::int64_t tokens = 0;              // that the cache holds
  int head_dim = 0;
  double row_bytes = 0;  // of all features
};

/// Exact footprint of K stored as the layout says: of each row the sectors that hold a feature
/// read. A run ends where a sector is left out.
Footprint exact_key_footprint(const KeyReads& keys, const CacheLayout& layout,
                              const MemorySystem& memory);

/// The same of a copy stored feature by feature: [kv_head][head_dim][tokens], or, if paged, pages
/// of [kv_head][head_dim][page_tokens] in the same order as K's.
Footprint exact_feature_footprint(const KeyReads& keys, const CacheLayout& layout,
                                  const MemorySystem& memory);

/// exact_footprint, expected, when only the number of rows is known: `rows` distinct rows per KV
/// head, spread at random over `tokens`, by `kv_heads` heads (averages may be fractional). All rows
/// give what exact_footprint gives.
Footprint expected_footprint(double rows, double tokens, int kv_heads, RowSize row,
                             const CacheLayout& layout, const MemorySystem& memory);

/// Adds to the work what a paged cache costs beside its rows: every kernel that reads rows first
/// reads the int32 numbers of their pages, one list per sequence, shared by its KV heads; the first
/// row waits for the first number, later numbers are fetched ahead. What runs on without a launch
/// has kept them. No change for the other layouts.
void add_page_table(Work& work, const Shape& shape, const CacheLayout& layout);

/// Footprints of what a step selected, summed over sequences and KV heads.
struct SelectionFootprint {
  Footprint k;
  Footprint v;
};

struct StageTraffic {
  std::string_view stage;
  double dram_read_bytes = 0;
  double dram_write_bytes = 0;
  double stream_bytes = 0;      // part of the DRAM reads that is sequential
  double gather_bytes = 0;      // part that is scattered rows …
  double gather_row_bytes = 0;  // … of this many bytes (adjacent rows make one longer row)
  double cache_read_bytes = 0;  // served through L2 / SRAM, DRAM reads included
  double cache_write_bytes = 0;
  double activations = 0;  // DRAM pages opened, the streams' included: energy per bit read
                           // already pays one for every MemorySystem::row_bytes
};

/// Bytes per level for one layer and step, whole batch.
struct Traffic {
  double requested_bytes = 0;  // union rows x row bytes + metadata, stash, partials (no q, o)
  double sector_bytes = 0;     // the same accesses in whole sectors
  double dram_read_bytes = 0;
  double dram_write_bytes = 0;
  std::array<double, kTensorNames.size()> dram_by_tensor{};  // sums to reads + writes
  std::vector<StageTraffic> stages;

  Traffic& operator+=(const Traffic& o);  // same method: stages are added one by one
};

/// Turns work into bytes. K and V footprints are `exact` when a replay has them, else expected.
/// L2 rules: a cold cache holds nothing at the start; what a stage writes and a later one reads
/// stays in the cache while it fits; rows read twice hit the second time unless too much came
/// between; with `kWarm` the cache holds what the previous identical step left (traffic.cpp derives
/// the formula). An access of kKRows or kVRows is taken to touch the whole set.
Traffic memory_traffic(const Work& work, const Shape& shape, const CacheLayout& layout,
                       CacheState state, const Machine& machine, const SelectionFootprint* exact);

}  // namespace kvsim
