#include "models/memory/traffic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/statistics.h"

namespace kvsim {
namespace {

constexpr std::size_t index_of(Tensor tensor) { return static_cast<std::size_t>(tensor); }
constexpr std::size_t kTensors = kTensorNames.size();

bool is_cache_row(Tensor tensor) { return tensor == Tensor::kK || tensor == Tensor::kV; }

/// Tensors that live for one step only: whatever is read of them was written in the same step.
bool is_intermediate(Tensor tensor) {
  return tensor == Tensor::kStash || tensor == Tensor::kPartial;
}

/// Hit share of a stream of `footprint` bytes that comes round again and again through a cache of
/// `capacity` bytes with random replacement. While it fits, all hits. Else: between two touches of
/// a line, (1 - h) F / line misses each evict one of C / line lines at random, so the line is still
/// there with probability (1 - line / C)^((1 - h) F / line) = exp(-(1 - h) F / C) = h, the positive
/// root of which Newton's method reaches from h = 0 without overshooting. (Exact LRU would give 0.)
double cyclic_hit_share(double footprint, double capacity) {
  if (footprint <= capacity) return 1;
  if (capacity <= 0) return 0;
  const double ratio = footprint / capacity;
  double miss = 1;
  for (int i = 0; i < 50; ++i) {
    const double survive = std::exp(-ratio * miss);
    const double step = (1 - miss - survive) / (ratio * survive - 1);
    miss -= step;
    if (std::abs(step) < 1e-9) break;
  }
  return 1 - std::clamp(miss, 0.0, 1.0);
}

double gather_runs(const StageTraffic& stage) {
  return stage.gather_row_bytes > 0 ? stage.gather_bytes / stage.gather_row_bytes : 0;
}

double whole(double bytes, int granule) { return std::ceil(bytes / granule - 1e-9) * granule; }

/// What the step did to a tensor so far.
struct History {
  double written = 0;  // bytes of it that this step made
  RowSet read_set = RowSet::kNone;
  bool was_read = false;
  double reads_before = 0;  // the step's DRAM reads when it was first read
};

/// One pass over the work. All DRAM bytes are whole numbers, so they add up exactly in any order.
class Accounting {
 public:
  Accounting(const Work& work, const Shape& shape, const CacheLayout& layout,
             const Machine& machine, const SelectionFootprint* exact)
      : work_(work), shape_(shape), layout_(layout), machine_(machine), exact_(exact) {
    note_intermediates();
  }

  /// `hit` is the share of reads from memory that the cache holds from the step before.
  Traffic run(double hit) {
    hit_ = hit;
    traffic_ = {};
    stage_ = 0;
    history_ = {};
    traffic_.stages.reserve(work_.stages.size());
    for (const Stage& stage : work_.stages) add_stage(stage);
    return std::move(traffic_);
  }
  double intermediate_bytes() const { return intermediate_bytes_; }

 private:
  void note_intermediates();
  void add_stage(const Stage& stage);
  void add_read(const Access& access, const Footprint& footprint, StageTraffic& stage);
  void add_write(const Access& access, const Footprint& footprint, StageTraffic& stage);
  Footprint footprint_of(const Access& access) const;
  Footprint rows_footprint(const Access& access) const;
  Footprint feature_footprint(const Access& access) const;
  Footprint without_features(const Access& access, const Footprint& whole) const;
  Footprint contiguous(const Access& access) const;
  double cached_share(const Access& access) const;

  const Work& work_;
  const Shape& shape_;
  const CacheLayout& layout_;
  const Machine& machine_;
  const SelectionFootprint* exact_;
  double hit_ = 0;
  double intermediate_bytes_ = 0;          // written and read again within the step
  double stays_ = 1;                       // the share of them that the cache keeps
  std::array<int, kTensors> last_read_{};  // stage in which a tensor is last read, -1 = never
  std::array<History, kTensors> history_{};
  double gather_runs_ = 0;
  int stage_ = 0;
  Traffic traffic_;
};

void Accounting::note_intermediates() {
  last_read_.fill(-1);
  std::array<double, kTensors> written{};
  int number = 0;
  for (const Stage& stage : work_.stages) {
    for (const Access& access : stage.accesses) {
      const std::size_t t = index_of(access.tensor);
      if (access.direction == Direction::kRead) {
        last_read_[t] = number;
      } else {
        // The largest write, not their sum: a later stage writes over the same bytes.
        written[t] = std::max(written[t], access.bytes());
      }
    }
    ++number;
  }
  for (std::size_t t = 0; t < kTensors; ++t) {
    if (last_read_[t] >= 0 && !is_cache_row(static_cast<Tensor>(t))) {
      intermediate_bytes_ += written[t];
    }
  }
  stays_ = cyclic_hit_share(intermediate_bytes_, machine_.cache_bytes);
}

void Accounting::add_stage(const Stage& stage) {
  StageTraffic& result = traffic_.stages.emplace_back();
  result.stage = stage.name;
  gather_runs_ = 0;
  for (const Access& access : stage.accesses) {
    if (access.bytes() <= 0) continue;
    const Footprint footprint = footprint_of(access);
    if (access.tensor != Tensor::kQuery && access.tensor != Tensor::kOutput) {
      traffic_.requested_bytes += access.bytes();
      traffic_.sector_bytes += footprint.sector_bytes;
    }
    if (access.direction == Direction::kRead) {
      add_read(access, footprint, result);
    } else {
      add_write(access, footprint, result);
    }
  }
  if (gather_runs_ > 0) result.gather_row_bytes = result.gather_bytes / gather_runs_;
  traffic_.dram_read_bytes += result.dram_read_bytes;
  traffic_.dram_write_bytes += result.dram_write_bytes;
  ++stage_;
}

/// The share of a read that the cache serves.
double Accounting::cached_share(const Access& access) const {
  const History& history = history_[index_of(access.tensor)];
  if (is_intermediate(access.tensor)) return stays_;
  const double fresh = std::min(1.0, history.written / access.bytes());
  double old = hit_;
  if (history.was_read && (!is_cache_row(access.tensor) || history.read_set == access.row_set)) {
    // Read before in this step: still there unless too much came through since.
    old = std::max(old, cyclic_hit_share(traffic_.dram_read_bytes - history.reads_before,
                                         machine_.cache_bytes));
  }
  return fresh * stays_ + (1 - fresh) * old;
}

void Accounting::add_read(const Access& access, const Footprint& footprint, StageTraffic& stage) {
  const MemorySystem& memory = machine_.memory;
  const double missed = 1 - cached_share(access);
  const double bytes = std::nearbyint(missed * footprint.atom_bytes);
  const double run_bytes =
      footprint.runs > 0 ? footprint.atom_bytes / footprint.runs : footprint.atom_bytes;
  if (memory.gather_row_bytes.empty() || run_bytes >= memory.gather_row_bytes.back()) {
    stage.stream_bytes += bytes;
  } else {
    stage.gather_bytes += bytes;
    gather_runs_ += bytes / run_bytes;
  }
  stage.dram_read_bytes += bytes;
  stage.activations += missed * footprint.activations;
  traffic_.dram_by_tensor[index_of(access.tensor)] += bytes;
  // The heads of a group share the K and V rows they load; of anything else, every request is a
  // load.
  const double loads =
      is_cache_row(access.tensor) ? 1 : std::max(1.0, access.requests / access.rows);
  stage.cache_read_bytes += loads * footprint.sector_bytes;

  History& history = history_[index_of(access.tensor)];
  // A set of unnamed rows is not known to be the same set the next time.
  if (!history.was_read && !(is_cache_row(access.tensor) && access.row_set == RowSet::kNone)) {
    history.was_read = true;
    history.read_set = access.row_set;
    history.reads_before = traffic_.dram_read_bytes;
  }
}

void Accounting::add_write(const Access& access, const Footprint& footprint, StageTraffic& stage) {
  const std::size_t t = index_of(access.tensor);
  // New K and V rows are there to last; what a later stage reads only leaves a cache it overfills.
  const bool passes =
      !is_cache_row(access.tensor) &&
      (last_read_[t] > stage_ || (last_read_[t] == stage_ && is_intermediate(access.tensor)));
  const double leaves = passes ? 1 - stays_ : 1;
  const double bytes = std::nearbyint(leaves * footprint.atom_bytes);
  stage.dram_write_bytes += bytes;
  stage.activations += leaves * footprint.activations;
  stage.cache_write_bytes += footprint.sector_bytes;
  traffic_.dram_by_tensor[t] += bytes;
  history_[t].written = std::max(history_[t].written, access.bytes());
}

Footprint Accounting::footprint_of(const Access& access) const {
  if (!is_cache_row(access.tensor) || access.direction == Direction::kWrite) {
    return contiguous(access);
  }
  const bool of_keys = access.row_set == RowSet::kKRows || access.row_set == RowSet::kKFeatures;
  if (exact_ != nullptr && of_keys) return exact_->k;
  if (exact_ != nullptr && access.row_set == RowSet::kVRows) return exact_->v;
  if (access.row_set == RowSet::kKFeatures) return feature_footprint(access);
  const bool in_part = access.row_set == RowSet::kKRows && access.row_bytes < shape_.k_row_bytes();
  if (!in_part) return rows_footprint(access);
  Access whole = access;
  whole.row_bytes = shape_.k_row_bytes();
  return without_features(access, rows_footprint(whole));
}

/// Features of K at random, stored feature by feature in the whole cache or in each page.
Footprint Accounting::feature_footprint(const Access& access) const {
  const double batch = shape_.batch();
  const double tokens = shape_.total_context() / batch;
  const bool paged = layout_.kind == LayoutKind::kPaged;
  const double pages = paged ? tokens / layout_.page_tokens : 1;
  const double features = access.rows / (batch * shape_.kv_heads);
  const Footprint one = expected_footprint(features, shape_.head_dim, shape_.kv_heads,
                                           packed(access.row_bytes / pages), {}, machine_.memory);
  const double times = batch * pages;
  return {one.sector_bytes * times, one.atom_bytes * times, one.activations * times,
          one.runs * times};
}

/// Of whole K rows those granules that hold a feature read, chunks of features being read
/// independently of each other.
Footprint Accounting::without_features(const Access& access, const Footprint& whole) const {
  const MemorySystem& memory = machine_.memory;
  const double chunk_bytes = kChunkFeatures * shape_.k_row_bytes() / shape_.head_dim;
  const auto share = [&](int granule) {
    return 1 - std::pow(1 - access.chunk_share, granule / chunk_bytes);
  };
  const double used = share(memory.sector_bytes);
  const double sectors = whole.sector_bytes / memory.sector_bytes;
  return {whole.sector_bytes * used, whole.atom_bytes * share(memory.atom_bytes),
          whole.activations * share(memory.row_bytes), used * (whole.runs + (1 - used) * sectors)};
}

/// Rows at random places of the batch's caches, all sequences taken as long as their mean. An
/// access in blocks of several rows counts blocks.
Footprint Accounting::rows_footprint(const Access& access) const {
  const double batch = shape_.batch();
  const bool of_k = access.tensor == Tensor::kK;
  const double row_bytes = of_k ? shape_.k_row_bytes() : shape_.v_row_bytes();
  const double row_stride = of_k ? row_bytes : shape_.v_stride_bytes();
  const double rows_per_block = access.row_bytes / row_bytes;
  const double blocks = shape_.total_context() / batch / rows_per_block;
  const double rows =
      access.row_set == RowSet::kAll ? blocks : access.rows / (batch * shape_.kv_heads);
  CacheLayout layout = layout_;  // with pages of so many blocks
  const double blocks_per_page = layout_.page_tokens / rows_per_block;
  layout.page_tokens = static_cast<int>(std::max(1.0, std::round(blocks_per_page)));
  const RowSize block{access.row_bytes, row_stride * rows_per_block};
  const Footprint one =
      expected_footprint(rows, blocks, shape_.kv_heads, block, layout, machine_.memory);
  const bool cut = layout_.kind == LayoutKind::kPaged && blocks_per_page < 1;
  return {one.sector_bytes * batch, one.atom_bytes * batch, one.activations * batch,
          one.runs * batch * (cut ? 1 / blocks_per_page : 1)};
}

Footprint Accounting::contiguous(const Access& access) const {
  const MemorySystem& memory = machine_.memory;
  const double bytes = access.bytes();
  return {whole(bytes, memory.sector_bytes), whole(bytes, memory.atom_bytes),
          std::ceil(bytes / memory.row_bytes), 1};
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& o) {
  requested_bytes += o.requested_bytes;
  sector_bytes += o.sector_bytes;
  dram_read_bytes += o.dram_read_bytes;
  dram_write_bytes += o.dram_write_bytes;
  for (std::size_t t = 0; t < dram_by_tensor.size(); ++t) dram_by_tensor[t] += o.dram_by_tensor[t];
  for (const StageTraffic& theirs : o.stages) {
    const auto ours = std::find_if(stages.begin(), stages.end(), [&theirs](const StageTraffic& s) {
      return s.stage == theirs.stage;
    });
    if (ours == stages.end()) {  // a layer may need a stage that the ones before did not
      stages.push_back(theirs);
      continue;
    }
    const double runs = gather_runs(*ours) + gather_runs(theirs);
    ours->dram_read_bytes += theirs.dram_read_bytes;
    ours->dram_write_bytes += theirs.dram_write_bytes;
    ours->stream_bytes += theirs.stream_bytes;
    ours->gather_bytes += theirs.gather_bytes;
    ours->gather_row_bytes = runs > 0 ? ours->gather_bytes / runs : 0;
    ours->cache_read_bytes += theirs.cache_read_bytes;
    ours->cache_write_bytes += theirs.cache_write_bytes;
    ours->activations += theirs.activations;
  }
  return *this;
}

Traffic memory_traffic(const Work& work, const Shape& shape, const CacheLayout& layout,
                       CacheState state, const Machine& machine, const SelectionFootprint* exact) {
  Accounting accounting(work, shape, layout, machine, exact);
  Traffic cold = accounting.run(0);
  if (state == CacheState::kCold) return cold;
  const double footprint =
      cold.dram_read_bytes + cold.dram_write_bytes + accounting.intermediate_bytes();
  return accounting.run(cyclic_hit_share(footprint, machine.cache_bytes));
}

}  // namespace kvsim
