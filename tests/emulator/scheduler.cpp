#include "tests/emulator/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "tests/emulator/barriers.h"
#include "tests/emulator/memory.h"

namespace kvsim::emulator {
namespace {

constexpr std::uint32_t kSubset = 4;        // once in so many turns some lanes stay behind
constexpr std::uint32_t kYield = 2;         // once in so many times others run first
constexpr std::uint32_t kNewPriority = 64;  // once in so many turns a warp gets another one
constexpr std::uint32_t kEarlyCopy = 8;     // once in so many times a copy is done
constexpr int kMostIdleRounds = 500;
constexpr std::uint64_t kMostIdleTurns = 1 << 20;

std::uint32_t lane_bit(const Thread& thread) { return 1u << thread.lane; }

uint3 index_in(dim3 extent, unsigned number) {
  return {number % extent.x, number / extent.x % extent.y, number / extent.x / extent.y};
}

std::string text_of(const Waiting& waits) {
  return fmt::format(fmt::runtime(waits.format), waits.first, waits.second);
}

unsigned count_of(dim3 extent) { return extent.x * extent.y * extent.z; }

}  // namespace

void fault(const std::string& what) {
  const Thread& self = this_thread();
  fail<RuntimeError>("emulator: CTA ({}, {}, {}), warp {}, lane {}: {}", self.cta->index.x,
                     self.cta->index.y, self.cta->index.z, self.warp->number, self.lane, what);
}

std::string waiting_warps(const Cta& cta) {
  std::string text;
  for (const Warp& warp : cta.warps) {
    std::map<std::string, std::uint32_t> lanes;
    for (std::uint32_t rest = warp.exists; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      const auto l = static_cast<std::size_t>(lane);
      const bool meets = (warp.meeting >> lane & 1) != 0;
      lanes[(warp.ready >> lane & 1) != 0 ? std::string("nothing")
            : meets ? fmt::format("{} of lanes {:08x}", warp.operation[l]->name, warp.mask[l])
                    : text_of(warp.threads[l]->waits_for)] |= 1u << lane;
    }
    for (const auto& [what, mask] : lanes) {
      text += fmt::format("\n  CTA ({}, {}, {}), warp {}, lanes {:08x}: {}", cta.index.x,
                          cta.index.y, cta.index.z, warp.number, mask, what);
    }
  }
  return text;
}

Scheduler::Scheduler(const LaunchShape& shape, std::function<void()> kernel, std::uint64_t seed)
    : shape_(shape), kernel_(std::move(kernel)), random_(seed), by_priority_(seed % 2 == 0) {}

void Scheduler::run() {
  gridDim = shape_.grid;
  blockDim = shape_.block;
  const unsigned count = count_of(shape_.grid);
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (unsigned i = count; i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  for (const unsigned number : order) {
    ctas_.push_back(make_cta(number));
    start(*ctas_.back());
    if (shape_.cooperative) continue;
    // Others need not run at once, so none does: who waits for another CTA waits for ever.
    run_until_done();
    ctas_.clear();
  }
  run_until_done();
  ctas_.clear();
}

std::unique_ptr<Cta> Scheduler::make_cta(unsigned number) {
  auto cta = std::make_unique<Cta>();
  cta->index = index_in(shape_.grid, number);
  cta->scheduler = this;
  cta->shared = SharedMemory(shape_.shared_bytes);
  const unsigned threads = count_of(shape_.block);
  cta->threads = std::vector<Thread>(threads);
  cta->warps = std::vector<Warp>((threads + kLanes - 1) / kLanes);
  cta->live = static_cast<int>(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Thread& thread = cta->threads[i];
    Warp& warp = cta->warps[i / kLanes];
    thread.index = index_in(shape_.block, i);
    thread.cta = cta.get();
    thread.warp = &warp;
    thread.lane = static_cast<int>(i % kLanes);
    warp.cta = cta.get();
    warp.number = static_cast<int>(i / kLanes);
    warp.priority = random_.word();
    warp.exists |= lane_bit(thread);
    warp.threads[i % kLanes] = &thread;
  }
  return cta;
}

void Scheduler::start(Cta& cta) {
  ++live_ctas_;
  for (Thread& thread : cta.threads) {
    thread.fiber.start([this, &thread] { run_thread(thread); });
    wake(thread);
  }
}

void Scheduler::run_thread(Thread& thread) {
  try {
    kernel_();
    returned(thread);
  } catch (...) {
    fault_ = std::current_exception();
  }
}

void Scheduler::returned(Thread& thread) {
  Warp& warp = *thread.warp;
  warp.exists &= ~lane_bit(thread);
  warp.ready &= ~lane_bit(thread);
  Cta& cta = *thread.cta;
  if (--cta.live == 0) --live_ctas_;
  thread_returned(cta);
}

void Scheduler::run_until_done() {
  while (live_ctas_ > 0) {
    if (runnable_.empty()) nobody_can_run();
    if (++idle_turns_ > kMostIdleTurns) report("some look again and again and see no change");
    run_some(next_warp());
  }
}

Warp& Scheduler::next_warp() {
  const auto count = static_cast<std::uint32_t>(runnable_.size());
  Warp& any = *runnable_[random_.below(count)];
  if (!by_priority_) return any;
  if (random_.once_in(kNewPriority)) any.priority = random_.word();
  return **std::max_element(runnable_.begin(), runnable_.end(),
                            [](const Warp* a, const Warp* b) { return a->priority < b->priority; });
}

void Scheduler::run_some(Warp& warp) {
  blockIdx = warp.cta->index;
  std::uint32_t lanes = warp.ready;
  if (random_.once_in(kSubset)) {
    const std::uint32_t some = lanes & random_.word();
    if (some != 0) lanes = some;
  }
  const std::uint32_t order = random_.word();
  const std::uint32_t flip = order / kLanes % kLanes;  // so that each pair comes in both orders
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    const std::uint32_t lane = (i + order) % kLanes ^ flip;
    if ((lanes >> lane & 1) == 0) continue;
    running = warp.threads[lane];
    threadIdx = running->index;
    running->fiber.resume();
    running = nullptr;
    if (fault_) std::rethrow_exception(fault_);
  }
  if (warp.ready != 0) return;
  runnable_.back()->place = warp.place;
  runnable_[static_cast<std::size_t>(warp.place)] = runnable_.back();
  runnable_.pop_back();
  warp.place = -1;
}

void Scheduler::wake(Thread& thread) {
  Warp& warp = *thread.warp;
  warp.ready |= lane_bit(thread);
  idle_turns_ = 0;
  idle_rounds_ = 0;
  if (warp.place >= 0) return;
  warp.place = static_cast<int>(runnable_.size());
  runnable_.push_back(&warp);
}

void Scheduler::block(Thread& self) {
  self.warp->ready &= ~lane_bit(self);
  self.fiber.suspend();
}

void Scheduler::maybe_yield(Thread& self) {
  if (random_.once_in(kEarlyCopy)) self.copies.finish_oldest();
  if (random_.once_in(kYield)) self.fiber.suspend();
}

void Scheduler::before_look(Thread& self, const void* address) {
  maybe_yield(self);
  if (published_.contains(address)) return;
  std::vector<const void*>& seen = self.looked_at;
  if (std::find(seen.begin(), seen.end(), address) == seen.end()) {
    seen.push_back(address);
    return;
  }
  seen.clear();
  lookers_[address].push_back(&self);
  self.waits_for = {"memory that nobody has written"};
  block(self);
}

void Scheduler::published(const void* address) {
  published_.insert(address);
  const auto lookers = lookers_.find(address);
  if (lookers == lookers_.end()) return;
  for (Thread* thread : lookers->second) wake(*thread);
  lookers_.erase(lookers);
}

/// What is looked at may be of an earlier launch, and fine; but not for ever.
void Scheduler::nobody_can_run() {
  const int rounds = idle_rounds_ + 1;
  if (lookers_.empty() || rounds > kMostIdleRounds) report("deadlock; nobody can go on");
  for (const auto& [address, threads] : std::exchange(lookers_, {})) {
    for (Thread* thread : threads) wake(*thread);
  }
  idle_rounds_ = rounds;
}

void Scheduler::report(const char* what) const {
  std::string text = fmt::format("emulator: {}:", what);
  for (const auto& cta : ctas_) text += waiting_warps(*cta);
  throw RuntimeError(text);
}

}  // namespace kvsim::emulator
