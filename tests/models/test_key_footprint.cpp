// Footprints of K when scores leave out features, token by token and feature by feature.

#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "core/philox.h"
#include "models/memory/traffic.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

MemorySystem gpu_memory() {
  MemorySystem memory;
  memory.sector_bytes = 32;
  memory.atom_bytes = 64;
  memory.row_bytes = 1024;
  return memory;
}

const MemorySystem kMemory = gpu_memory();
constexpr CacheLayout kHnd{LayoutKind::kHnd};
constexpr CacheLayout kNhd{LayoutKind::kNhd};

/// Each feature with probability `share`.
RowRanges random_features(int head_dim, double share, std::uint32_t seed) {
  const RandomStream stream{.seed = seed};
  std::vector<std::int64_t> features;
  for (int i = 0; i < head_dim; ++i) {
    if (stream.word(static_cast<std::uint32_t>(i)) < share * 0x1p32) features.push_back(i);
  }
  return RowRanges::of(features);
}

struct Case {
  std::vector<RowRanges> rows;
  std::vector<RowRanges> features;
  std::int64_t tokens = 0;
  int head_dim = 0;

  KeyReads reads() const { return {rows, features, tokens, head_dim, 2.0 * head_dim}; }
};

Case make_case(int heads, std::int64_t tokens, int head_dim, double share, std::uint32_t seed) {
  Case c{{}, {}, tokens, head_dim};
  for (int head = 0; head < heads; ++head) {
    c.rows.push_back({});
    c.rows.back().append(tokens / 3, tokens);  // as a window leaves them
    c.features.push_back(random_features(head_dim, share, seed + static_cast<std::uint32_t>(head)));
  }
  return c;
}

/// Granules by marking the address of every element read; elements have two bytes.
using Address =
    std::function<std::int64_t(std::int64_t head, std::int64_t token, std::int64_t feature)>;
void check_bytes(const Footprint& found, const Case& c, const Address& address) {
  std::set<std::int64_t> sectors;
  std::set<std::int64_t> atoms;
  std::set<std::int64_t> pages;
  for (std::size_t head = 0; head < c.rows.size(); ++head) {
    for (const Range& range : c.rows[head].ranges()) {
      for (std::int64_t token = range.begin; token < range.end; ++token) {
        for (const Range& some : c.features[head].ranges()) {
          for (std::int64_t feature = some.begin; feature < some.end; ++feature) {
            const std::int64_t byte = 2 * address(static_cast<std::int64_t>(head), token, feature);
            sectors.insert(byte / 32);
            atoms.insert(byte / 64);
            pages.insert(byte / 1024);
          }
        }
      }
    }
  }
  std::int64_t runs = 0;
  for (const std::int64_t sector : sectors) runs += sectors.contains(sector - 1) ? 0 : 1;
  CHECK(found.sector_bytes == 32.0 * static_cast<double>(sectors.size()));
  CHECK(found.atom_bytes == 64.0 * static_cast<double>(atoms.size()));
  CHECK(found.activations == static_cast<double>(pages.size()));
  CHECK(found.runs == static_cast<double>(runs));
}

TEST_CASE("sectors of K with features left out are those of the elements read") {
  for (const int dim : {4, 20, 64, 72, 128}) {  // 4, 20 and 72: rows begin inside sectors
    for (const double share : {0.0, 0.03, 0.2, 0.6, 1.0}) {
      for (const int heads : {1, 3}) {
        INFO("head size " << dim << ", share " << share << ", heads " << heads);
        const Case c = make_case(heads, 50, dim, share, 7);
        check_bytes(exact_key_footprint(c.reads(), kHnd, kMemory), c,
                    [&](std::int64_t head, std::int64_t token, std::int64_t feature) {
                      return (head * 50 + token) * dim + feature;
                    });
        check_bytes(exact_key_footprint(c.reads(), kNhd, kMemory), c,
                    [&](std::int64_t head, std::int64_t token, std::int64_t feature) {
                      return (token * heads + head) * dim + feature;
                    });
        check_bytes(exact_feature_footprint(c.reads(), kHnd, kMemory), c,
                    [&](std::int64_t head, std::int64_t token, std::int64_t feature) {
                      return (head * dim + feature) * 50 + token;
                    });
      }
    }
  }
}

TEST_CASE("pages hold their rows, or their features, by themselves") {
  // A page is as large as its rows, so those of one cache read as many bytes in any order.
  const Case c = make_case(2, 96, 64, 0.2, 3);
  const CacheLayout paged{LayoutKind::kPaged, 16};
  const Footprint rows = exact_key_footprint(c.reads(), paged, kMemory);
  CHECK(rows.sector_bytes == exact_key_footprint(c.reads(), kHnd, kMemory).sector_bytes);
  // 16 tokens of a feature are one sector.
  const auto features = static_cast<double>(c.features[0].size() + c.features[1].size());
  const Footprint by_feature = exact_feature_footprint(c.reads(), paged, kMemory);
  CHECK(by_feature.sector_bytes == 32 * features * 4);  // tokens 32 to 95
  CHECK(by_feature.atom_bytes > 64 * features * 4 / 2);
}

TEST_CASE("all features in K's own layout are whole rows") {
  const Case c = make_case(2, 90, 80, 1.0, 1);
  for (const CacheLayout& layout : {kHnd, kNhd, CacheLayout{LayoutKind::kPaged, 16}}) {
    const Footprint found = exact_key_footprint(c.reads(), layout, kMemory);
    const Footprint whole = exact_footprint(c.rows, 90, packed(160), layout, kMemory);
    CHECK(found.sector_bytes == whole.sector_bytes);
    CHECK(found.atom_bytes == whole.atom_bytes);
    CHECK(found.activations == whole.activations);
    CHECK(found.runs == whole.runs);
  }
}

/// K alone, read by one stage.
Work key_work(const Access& access) {
  Work work;
  work.add_stage("stream_k", Boundary::kKernelLaunch).accesses.push_back(access);
  return work;
}

TEST_CASE("expected traffic of left-out features is the mean of exact ones") {
  constexpr int kDim = 128;
  constexpr std::int64_t kTokens = 1024;
  constexpr int kTrials = 300;
  const std::vector<std::int64_t> contexts{kTokens};
  const Shape shape{
      .contexts = contexts, .q_heads = 1, .kv_heads = 1, .head_dim = kDim, .v_head_dim = kDim};
  Machine machine;
  machine.memory = kMemory;
  for (const double share : {0.05, 0.15, 0.5, 0.95}) {
    double features = 0;
    double chunks = 0;
    Footprint token;
    Footprint feature;
    for (std::uint32_t trial = 0; trial < kTrials; ++trial) {
      Case c{{RowRanges::all(kTokens)}, {random_features(kDim, share, trial)}, kTokens, kDim};
      features += static_cast<double>(c.features[0].size()) / kTrials;
      std::set<std::int64_t> used;
      for (const Range& range : c.features[0].ranges()) {
        for (std::int64_t i = range.begin; i < range.end; ++i) used.insert(i / 16);
      }
      chunks += static_cast<double>(used.size()) / kTrials;
      token += exact_key_footprint(c.reads(), kHnd, kMemory);
      feature += exact_feature_footprint(c.reads(), kHnd, kMemory);
    }
    INFO("share " << share);
    const Access rows{Tensor::kK, Direction::kRead, RowSet::kKRows, 2 * features,
                      kTokens,    kTokens,          chunks / 8};
    const Traffic by_token =
        memory_traffic(key_work(rows), shape, {}, CacheState::kCold, machine, nullptr);
    CHECK(by_token.requested_bytes == Approx(2 * features * kTokens));
    CHECK(by_token.sector_bytes == Approx(token.sector_bytes / kTrials).epsilon(1e-3));
    CHECK(by_token.dram_read_bytes == Approx(token.atom_bytes / kTrials).epsilon(0.02));
    const Access columns{
        Tensor::kK, Direction::kRead, RowSet::kKFeatures, 2.0 * kTokens, features, features, 1};
    const Traffic by_feature =
        memory_traffic(key_work(columns), shape, {}, CacheState::kCold, machine, nullptr);
    CHECK(by_feature.sector_bytes == Approx(feature.sector_bytes / kTrials));
    CHECK(by_feature.dram_read_bytes == Approx(feature.atom_bytes / kTrials));
  }
}

}  // namespace
}  // namespace kvsim
