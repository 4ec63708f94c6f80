#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/topk/select.cuh"

namespace kvsim::device {

/// Adds up the V rows that are selected among this CTA's keys, and then the team's sums. A warp
/// queues the rows of its head as it meets them, so that whole batches are loaded at once.
template <typename T, int D, typename Shape, bool kTeams>
class TopkGather {
 public:
  __device__ TopkGather(const TopkArguments& arguments, char* shared)
      : a_(arguments),
        shared_(arguments, shared),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {
    const TopkLayout layout = TopkLayout::of(arguments, Shape::kWarps, D);
    sum_ = reinterpret_cast<WeightedPair*>(shared + layout.sum);
    teams_ = reinterpret_cast<TeamPart*>(shared + layout.teams);
    heads_ = reinterpret_cast<HeadSelect*>(shared + layout.heads);
    histograms_ = reinterpret_cast<std::uint32_t*>(shared + layout.histograms);
    sums_ = reinterpret_cast<float*>(shared + layout.sums);
    weights_ = reinterpret_cast<float*>(shared + layout.weights);
    queue_ = reinterpret_cast<uint2*>(shared + layout.queues) + warp_ * kQueueRows;
  }

  /// `launches`: as read from the counter.
  __device__ void run(unsigned long long launches) {
    launch_ = LaunchCounter::number(launches);
    list_teams();
    TopkSelect<Shape::kWarps>(a_, shared_, teams_, count_, heads_, histograms_, launch_).run();
#pragma unroll 1
    for (int n = 0; n < count_; ++n) {
      sync_workers<Shape::kWorkers>();  // the team before may still read
#pragma unroll 1
      for (int item = warp_; item < a_.group << a_.parts_log2; item += Shape::kWarps) {
        gather_item(n, item);
      }
      sync_workers<Shape::kWorkers>();
      write_sums(n);
    }
#pragma unroll 1
    for (int i = 0; i < min(count_, 2); ++i) add_up_team(i == 0 ? 0 : count_ - 1);
    sync_workers<Shape::kWorkers>();
    if (threadIdx.x == 0) a_.partials.launches.leave(a_.split.ctas);
  }

 private:
  static constexpr int kColumns = D / kWarp;  // of a V row, per lane

  /// The share's teams, and what is to be selected in each.
  __device__ void list_teams() {
    UnitStream<kTeams> blocks = units_of_cta<kTeams>(a_.split);
    int index = 0;
#pragma unroll 1
    for (; !blocks.done(); ++count_) {
      const TeamPart part = take_part<kTeams>(a_, blocks, index);
      if (threadIdx.x == 0) teams_[count_] = part;
      if (static_cast<int>(threadIdx.x) < a_.group) {
        const auto context = static_cast<std::uint32_t>(
            a_.step.contexts[static_cast<std::size_t>(part.own.team.sequence)]);
        heads_[count_ * a_.group + static_cast<int>(threadIdx.x)] = {0, min(a_.keys, context), 0};
      }
    }
  }

  /// A warp's part of a head's rows: each takes them in turn, so that parts are equal wherever the
  /// rows lie.
  __device__ void gather_item(int n, int item) {
    const int head = item >> a_.parts_log2;
    const int parts = 1 << a_.parts_log2;
    const int part = item & (parts - 1);
    const TeamPart& team = teams_[n];
    const HeadSelect select = heads_[n * a_.group + head];
    const float reference = reference_of(select);
    float sum[kColumns] = {};
    float weight = 0;
    std::uint32_t ties = 0;  // in blocks before
    int seen = 0;            // those blocks
    int ranked = 0;          // rows of the head so far, of all parts
    int flushed = 0;         // rows of this part that are added up
#pragma unroll 1
    for (int b = 0; b <= team.own.count; ++b) {
      if (b < team.own.count) {
        const int block = team.own.first + b * team.own.step;
        if (!select.is_closed()) ties += count_ties(team, head, seen, block);
        seen = block;
        const std::uint32_t* keys = TopkSelect<Shape::kWarps>::keys_of(a_, shared_, team, b, head);
        std::uint32_t mask = selected(keys, select, ties);
        const auto own = static_cast<std::uint32_t>(__popc(mask));
        int rank = ranked + static_cast<int>(lanes_before(own, lane_));
        ranked += static_cast<int>(__reduce_add_sync(0xffffffffu, own));
        for (; mask != 0; mask &= mask - 1, ++rank) {
          if ((rank & (parts - 1)) != part) continue;
          const int i = lane_ * kLaneKeys + __ffs(static_cast<int>(mask)) - 1;
          queue_[(rank >> a_.parts_log2) - flushed] = {
              static_cast<std::uint32_t>(block * kBlockTokens + i), keys[i]};
        }
      }
      const int queued = ((ranked + parts - 1 - part) >> a_.parts_log2) - flushed;
      if (b < team.own.count && queued <= kQueueRows - kBlockTokens) continue;
      __syncwarp();
      add_rows(sum, weight, n, head, queued, reference);
      __syncwarp();
      flushed += queued;
    }
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      weight += __shfl_xor_sync(0xffffffffu, weight, distance);
    }
    if (lane_ == 0) weights_[item] = weight;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums_[item * D + lane_ * kColumns + i] = sum[i];
  }

  /// Weights of this CTA are relative to its own largest score, which is selected if any is.
  __device__ static float reference_of(const HeadSelect& select) {
    return fmaxf(value_of(select.highest), -FLT_MAX);  // never -inf - -inf
  }

  /// Keys equal to the k-th largest in blocks `begin` to `end` of the team, whosever they are.
  __device__ std::uint32_t count_ties(const TeamPart& team, int head, int begin, int end) const {
    std::uint32_t ties = 0;
#pragma unroll 1
    for (int block = begin + lane_; block < end; block += kWarp) {
      ties += await(records_of(a_, team.own.team, head) + block, launch_).a.word;
    }
    return __reduce_add_sync(0xffffffffu, ties);
  }

  /// Which of this lane's keys of a block are selected, as bits; `ties` equal keys lie before.
  __device__ std::uint32_t selected(const std::uint32_t* keys, const HeadSelect& select,
                                    std::uint32_t ties) const {
    std::uint32_t word[kLaneKeys];
    load_keys(word, keys);
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      above |= word[i] > select.key ? 1u << i : 0u;
      equal |= word[i] == select.key ? 1u << i : 0u;
    }
    if (!__any_sync(0xffffffffu, equal != 0)) return above;
    ties += lanes_before(static_cast<std::uint32_t>(__popc(equal)), lane_);
    for (; equal != 0 && ties < select.taken; equal &= equal - 1, ++ties) above |= equal & -equal;
    return above;
  }

  /// Adds up the queued rows; `weight` is of this lane's rows.
  __device__ void add_rows(float (&sum)[kColumns], float& weight, int n, int head, int queued,
                           float reference) const {
    const TeamSplit::Team& team = teams_[n].own.team;
#pragma unroll 1
    for (int base = 0; base < queued; base += kWarp) {
      const int valid = min(kWarp, queued - base);
      const uint2 entry = queue_[base + min(lane_, valid - 1)];
      const auto row = static_cast<int>(entry.x);
      const T* v = row_pointer<T>(a_.step.v, team.sequence, team.kv_head, row);
      const float own = fast_exp2((value_of(entry.y) - reference) * kLog2e);
      if (lane_ < valid) {
        weight += own;
        if (a_.step.counts != nullptr) {
          a_.step.counts[(first_head(a_.step, a_.group, team) + head) * a_.step.dump_stride + row] =
              1;
        }
      }
#pragma unroll 1
      for (int first = 0; first < valid; first += kBatch) add_batch(sum, v, own, first, valid);
    }
  }

  /// Rows `first` and following of the lanes' rows; all their loads are under way at once.
  __device__ void add_batch(float (&sum)[kColumns], const T* v, float weight, int first,
                            int valid) const {
    constexpr int kWords = kColumns / 2;
    std::uint32_t words[kBatch][kWords];
    const bool inside = lane_ * kColumns < a_.step.head_dim;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const auto* row = reinterpret_cast<const T*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(v), first + j));
      load_words<kWords>(words[j], inside ? row + lane_ * kColumns : row);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float factor = __shfl_sync(0xffffffffu, weight, first + j);
      if (!inside || first + j >= valid) continue;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 value = unpack2<T>(words[j][w]);
        sum[2 * w] = fmaf(factor, value.x, sum[2 * w]);
        sum[2 * w + 1] = fmaf(factor, value.y, sum[2 * w + 1]);
      }
    }
  }

  /// The warps' sums become the CTA's: output if the team is its own, else a partial result.
  __device__ void write_sums(int n) {
    const TeamPart& team = teams_[n];
    const int group = a_.group;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < group * D / 2; i += Shape::kWorkers) {
      const int head = 2 * i / D;
      const int column = 2 * i % D;
      const float highest = reference_of(heads_[n * group + head]) * kLog2e;
      WeightedPair total{0, 0, 0, highest};
#pragma unroll 1
      for (int p = 0; p < 1 << a_.parts_log2; ++p) {
        const int item = (head << a_.parts_log2) + p;
        const auto part = *reinterpret_cast<const float2*>(sums_ + item * D + column);
        total.a += part.x;
        total.b += part.y;
        total.sum += weights_[item];
      }
      if (team.sharing.members == 1) {
        write_weighted(a_.step, group, team.own.team, head, column, total);
        continue;
      }
      publish(a_.partials.values + team.sharing.slot * (group * D / 2) + i,
              __float_as_uint(total.a), __float_as_uint(total.b), launch_);
      if (column == 0) {
        publish(a_.partials.weights + team.sharing.slot * group + head, __float_as_uint(total.sum),
                __float_as_uint(highest), launch_);
      }
    }
  }

  __device__ void add_up_team(int n) {
    const TeamPart& team = teams_[n];
    if (team.sharing.members == 1) return;
    const TeamSum<D, Shape::kWorkers, true> sum(a_.partials, a_.group, sum_, launch_);
    sum.run(team.sharing, [&](int head, int column, const WeightedPair& total) {
      write_weighted(a_.step, a_.group, team.own.team, head, column, total);
    });
  }

  static constexpr int kBatch = kSelectedRowsAtOnce;

  const TopkArguments& a_;
  StreamShared shared_;
  int warp_;
  int lane_;
  int count_ = 0;              // teams of this CTA
  WeightedPair* sum_;          // [threads]
  TeamPart* teams_;            // [most_teams]
  HeadSelect* heads_;          // [most_teams, group]
  std::uint32_t* histograms_;  // [group, copies, kHistogramRow]
  float* sums_;                // [items, D]
  float* weights_;             // [items]
  uint2* queue_;               // of this warp: row and key
  std::uint32_t launch_ = 0;   // this launch's number
};

}  // namespace kvsim::device
