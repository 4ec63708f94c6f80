#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/emulator/fiber.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/vector_types.h"

// Threads, warps and CTAs of a launch. A thread runs until it does something that others can see or
// that waits for them; then the scheduler decides who goes on (scheduler.h).

namespace kvsim::emulator {

inline constexpr int kLanes = 32;

class Scheduler;
struct Cta;
struct Warp;

/// Asynchronous copies of one thread. Most are done as late as a kernel lets them be: when it
/// waits.
class AsyncCopies {
 public:
  /// `source` null: zeros. The target is NaN until the copy is waited for.
  void start(std::byte* target, const std::byte* source, std::size_t bytes);
  void commit();
  void wait(std::size_t groups_left);
  /// One group is done although nobody has waited for it.
  void finish_oldest();

 private:
  struct Copy {
    std::byte* target;
    const std::byte* source;
    std::size_t bytes;
  };
  std::vector<Copy> copies_;
  std::vector<std::size_t> groups_;  // ends of those committed, in copies_
};

/// What a lane does together with others of its warp.
struct WarpOperation {
  const char* name;
  /// `lanes`: what each lane of `mask` brought.
  void (*run)(const std::array<void*, kLanes>& lanes, std::uint32_t mask);
};

/// For reports: a format of fmt's and what it prints.
struct Waiting {
  const char* format = "";
  std::int64_t first = 0;
  std::int64_t second = 0;
};

struct Thread {
  Fiber fiber;
  uint3 index{};
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  int lane = 0;
  Waiting waits_for;                   // outside WarpOperations
  bool barrier_result = false;         // of the barrier that it waited for last
  std::vector<const void*> looked_at;  // since it last waited for memory
  AsyncCopies copies;
};

struct Warp {
  Cta* cta = nullptr;
  int number = 0;
  std::uint32_t exists = 0;    // lanes that have not returned
  std::uint32_t ready = 0;     // that can go on
  std::uint32_t meeting = 0;   // that wait for others at a WarpOperation
  std::uint32_t priority = 0;  // who is highest runs, in some schedules
  int place = -1;              // among those that can run
  std::array<Thread*, kLanes> threads{};
  std::array<const WarpOperation*, kLanes> operation{};
  std::array<std::uint32_t, kLanes> mask{};
  std::array<void*, kLanes> brought{};
};

/// barrier.sync's
struct NamedBarrier {
  int expected = 0;
  bool any = false;
  std::vector<Thread*> arrived;
};

struct MbarrierWait {
  const std::uint64_t* barrier;
  int parity;
  Thread* thread;
};

struct Cta {
  static constexpr int kBarriers = 16;

  uint3 index{};
  Scheduler* scheduler = nullptr;
  int live = 0;  // threads that have not returned
  SharedMemory shared;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::array<NamedBarrier, kBarriers> barriers;
  std::vector<MbarrierWait> waits;
};

/// Who runs; valid inside kernels only.
inline constinit thread_local Thread* running = nullptr;
inline Thread& this_thread() { return *running; }

}  // namespace kvsim::emulator

// CUDA's names for where the running thread is; the scheduler sets them whenever it changes.
inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
