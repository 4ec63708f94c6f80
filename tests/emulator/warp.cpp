#include "tests/emulator/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tests/emulator/scheduler.h"

namespace kvsim::emulator {
namespace {

using Lanes = std::array<void*, kLanes>;

/// Calls `visit(lane)` for every lane of a mask.
template <typename Visit>
void for_lanes(std::uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(static_cast<std::size_t>(std::countr_zero(mask)));
}

std::uint32_t& vote_of(const Lanes& lanes, std::size_t lane) {
  return static_cast<Vote*>(lanes[lane])->value;
}

/// Gives all lanes what `add` makes of all their values, beginning with 0.
template <typename Add>
void reduce(const Lanes& lanes, std::uint32_t mask, const Add& add) {
  std::uint32_t total = 0;
  for_lanes(mask, [&](std::size_t lane) { total = add(total, vote_of(lanes, lane), lane); });
  for_lanes(mask, [&](std::size_t lane) { vote_of(lanes, lane) = total; });
}

void run_shuffle(const Lanes& lanes, std::uint32_t mask) {
  std::array<std::uint64_t, kLanes> values{};
  for_lanes(mask, [&](std::size_t lane) {
    values[lane] = static_cast<const Shuffle*>(lanes[lane])->value;
  });
  for_lanes(mask, [&](std::size_t lane) {
    auto& own = *static_cast<Shuffle*>(lanes[lane]);
    if ((mask >> own.source & 1) == 0) {
      fault(fmt::format("lane {} asks lane {}, which is not in the mask {:08x}", lane, own.source,
                        mask));
    }
    own.value = values[static_cast<std::size_t>(own.source)];
  });
}

void run_ballot(const Lanes& lanes, std::uint32_t mask) {
  reduce(lanes, mask, [](std::uint32_t total, std::uint32_t value, std::size_t lane) {
    return total | (value != 0 ? 1u << lane : 0u);
  });
}

void run_sum(const Lanes& lanes, std::uint32_t mask) {
  reduce(lanes, mask, [](auto total, auto value, std::size_t) { return total + value; });
}

void run_or(const Lanes& lanes, std::uint32_t mask) {
  reduce(lanes, mask, [](auto total, auto value, std::size_t) { return total | value; });
}

void run_max(const Lanes& lanes, std::uint32_t mask) {
  reduce(lanes, mask, [](auto total, auto value, std::size_t) { return std::max(total, value); });
}

void run_match(const Lanes& lanes, std::uint32_t mask) {
  std::array<std::uint32_t, kLanes> equal{};
  for_lanes(mask, [&](std::size_t lane) {
    for_lanes(mask, [&](std::size_t other) {
      if (vote_of(lanes, lane) == vote_of(lanes, other)) equal[lane] |= 1u << other;
    });
  });
  for_lanes(mask, [&](std::size_t lane) { vote_of(lanes, lane) = equal[lane]; });
}

void run_nothing(const Lanes&, std::uint32_t) {}

constexpr WarpOperation kShuffle{"a shuffle", run_shuffle};
constexpr WarpOperation kSync{"__syncwarp", run_nothing};
constexpr WarpOperation kBallot{"a ballot", run_ballot};
constexpr WarpOperation kSum{"__reduce_add_sync", run_sum};
constexpr WarpOperation kOr{"__reduce_or_sync", run_or};
constexpr WarpOperation kMax{"__reduce_max_sync", run_max};
constexpr WarpOperation kMatch{"__match_any_sync", run_match};

std::uint32_t vote(const WarpOperation& operation, std::uint32_t mask, std::uint32_t value) {
  Vote own{value};
  meet(operation, mask, &own);
  return own.value;
}

/// Faults if the lanes of `mask` cannot all come to this operation.
void check_lanes(const Warp& warp, int lane, const WarpOperation& operation, std::uint32_t mask) {
  if ((mask >> lane & 1) == 0) {
    fault(fmt::format("{} of lanes {:08x}, not its own", operation.name, mask));
  }
  if ((mask & ~warp.exists) != 0) {
    fault(fmt::format("{} of lanes {:08x}, of which {:08x} have returned", operation.name, mask,
                      mask & ~warp.exists));
  }
  const std::uint32_t others = warp.meeting & mask;
  if (others == 0) return;
  const int other = std::countr_zero(others);  // which agrees with those that came before
  const auto o = static_cast<std::size_t>(other);
  if (warp.operation[o] == &operation && warp.mask[o] == mask) return;
  fault(fmt::format("{} of lanes {:08x}, while lane {} is at {} of lanes {:08x}", operation.name,
                    mask, other, warp.operation[o]->name, warp.mask[o]));
}

}  // namespace

void meet(const WarpOperation& operation, std::uint32_t mask, void* brought) {
  Thread& self = this_thread();
  Warp& warp = *self.warp;
  check_lanes(warp, self.lane, operation, mask);
  const auto lane = static_cast<std::size_t>(self.lane);
  warp.operation[lane] = &operation;
  warp.mask[lane] = mask;
  warp.brought[lane] = brought;
  warp.meeting |= 1u << lane;
  Scheduler& scheduler = *warp.cta->scheduler;
  if ((warp.meeting & mask) != mask) return scheduler.block(self);
  operation.run(warp.brought, mask);
  warp.meeting &= ~mask;
  for_lanes(mask & ~(1u << lane), [&](std::size_t other) { scheduler.wake(*warp.threads[other]); });
}

void shuffle(std::uint32_t mask, Shuffle& lane) { meet(kShuffle, mask, &lane); }

void sync_warp(std::uint32_t mask) { meet(kSync, mask, nullptr); }

std::uint32_t ballot(std::uint32_t mask, bool value) { return vote(kBallot, mask, value ? 1 : 0); }

std::uint32_t sum_of_lanes(std::uint32_t mask, std::uint32_t value) {
  return vote(kSum, mask, value);
}

std::uint32_t or_of_lanes(std::uint32_t mask, std::uint32_t value) {
  return vote(kOr, mask, value);
}

std::uint32_t max_of_lanes(std::uint32_t mask, std::uint32_t value) {
  return vote(kMax, mask, value);
}

std::uint32_t equal_lanes(std::uint32_t mask, std::uint32_t value) {
  return vote(kMatch, mask, value);
}

}  // namespace kvsim::emulator
