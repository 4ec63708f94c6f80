#pragma once

#include <cstdint>

#include "tests/emulator/thread.h"

namespace kvsim::emulator {

/// barrier.sync of `expected` threads, 0: all that have not returned. Whether `value` was true for
/// any of them.
bool sync_barrier(int id, int expected, bool value = false);
/// Fewer threads are left, which may be all that a barrier waits for.
void thread_returned(Cta& cta);

// Barriers in shared memory.

void init_mbarrier(std::uint64_t* barrier, int arrivals);
void arrive_mbarrier(std::uint64_t* barrier);
/// Whether the phase of this parity has ended.
bool test_mbarrier(std::uint64_t* barrier, int parity);
void wait_mbarrier(std::uint64_t* barrier, int parity);

}  // namespace kvsim::emulator
