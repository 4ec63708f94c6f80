#include "tests/emulator/barriers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "tests/emulator/scheduler.h"

namespace kvsim::emulator {
namespace {

/// What an mbarrier's 64 bits hold here. The mark tells one that was not initialised.
struct MbarrierState {
  static constexpr std::uint16_t kMark = 0xBA55;

  std::uint16_t mark;
  std::uint16_t expected;
  std::uint16_t pending;
  std::uint16_t phase;
};
static_assert(sizeof(MbarrierState) == sizeof(std::uint64_t));

std::uint32_t offset_of(const std::uint64_t* barrier) {
  return this_thread().cta->shared.address_of(barrier);
}

MbarrierState load(std::uint64_t* barrier, const char* what) {
  this_thread().cta->shared.at(offset_of(barrier), sizeof(*barrier), sizeof(*barrier), what);
  const auto state = std::bit_cast<MbarrierState>(*barrier);
  if (state.mark != MbarrierState::kMark) {
    fault(fmt::format("{} at shared address {}, which is no barrier", what, offset_of(barrier)));
  }
  return state;
}

bool is_past(const MbarrierState& state, int parity) { return (state.phase & 1) != parity; }

void release(NamedBarrier& barrier, Scheduler& scheduler) {
  for (Thread* thread : std::exchange(barrier.arrived, {})) {
    thread->barrier_result = barrier.any;
    scheduler.wake(*thread);
  }
  barrier.expected = 0;
  barrier.any = false;
}

bool is_complete(const NamedBarrier& barrier, const Cta& cta) {
  const int expected = barrier.expected > 0 ? barrier.expected : cta.live;
  return static_cast<int>(barrier.arrived.size()) >= expected;
}

}  // namespace

bool sync_barrier(int id, int expected, bool value) {
  Thread& self = this_thread();
  Cta& cta = *self.cta;
  cta.scheduler->maybe_yield(self);
  NamedBarrier& barrier = cta.barriers[static_cast<std::size_t>(id)];
  if (expected % kLanes != 0) {
    fault(fmt::format("barrier {} of {} threads, which are no whole warps", id, expected));
  }
  if (!barrier.arrived.empty() && barrier.expected != expected) {
    fault(fmt::format("barrier {} of {} threads, others wait for {}", id, expected,
                      barrier.expected));
  }
  barrier.expected = expected;
  barrier.any = barrier.any || value;
  barrier.arrived.push_back(&self);
  if (is_complete(barrier, cta)) {
    release(barrier, *cta.scheduler);
  } else {
    self.waits_for = {"barrier {} of {} threads", id, expected};
    cta.scheduler->block(self);
  }
  return self.barrier_result;
}

void thread_returned(Cta& cta) {
  for (NamedBarrier& barrier : cta.barriers) {
    if (!barrier.arrived.empty() && is_complete(barrier, cta)) release(barrier, *cta.scheduler);
  }
}

void init_mbarrier(std::uint64_t* barrier, int arrivals) {
  Thread& self = this_thread();
  self.cta->shared.at(offset_of(barrier), sizeof(*barrier), sizeof(*barrier), "mbarrier.init");
  const auto count = static_cast<std::uint16_t>(arrivals);
  *barrier = std::bit_cast<std::uint64_t>(MbarrierState{MbarrierState::kMark, count, count, 0});
  self.cta->scheduler->maybe_yield(self);
}

void arrive_mbarrier(std::uint64_t* barrier) {
  Thread& self = this_thread();
  Cta& cta = *self.cta;
  MbarrierState state = load(barrier, "mbarrier.arrive");
  if (--state.pending == 0) {
    state.pending = state.expected;
    ++state.phase;
  }
  *barrier = std::bit_cast<std::uint64_t>(state);
  std::erase_if(cta.waits, [&](const MbarrierWait& wait) {
    if (wait.barrier != barrier || !is_past(state, wait.parity)) return false;
    cta.scheduler->wake(*wait.thread);
    return true;
  });
  cta.scheduler->maybe_yield(self);
}

bool test_mbarrier(std::uint64_t* barrier, int parity) {
  Thread& self = this_thread();
  self.cta->scheduler->maybe_yield(self);
  return is_past(load(barrier, "mbarrier.test_wait"), parity);
}

void wait_mbarrier(std::uint64_t* barrier, int parity) {
  Thread& self = this_thread();
  Cta& cta = *self.cta;
  while (!test_mbarrier(barrier, parity)) {
    cta.waits.push_back({barrier, parity, &self});
    self.waits_for = {"mbarrier at shared address {}, parity {}", offset_of(barrier), parity};
    cta.scheduler->block(self);
  }
}

}  // namespace kvsim::emulator
