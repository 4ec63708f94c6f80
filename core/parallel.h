#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>

namespace kvsim {

/// Calls `body(i)` for every i in [0, count) on `threads` threads, in no fixed order: bodies write
/// to their own slots, and sums are made afterwards in index order, so results do not depend on the
/// number of threads. If bodies throw, the exception of the lowest index that ran is rethrown.
template <typename Body>
void parallel_for(std::int64_t count, int threads, const Body& body) {
  std::exception_ptr error;
  std::int64_t error_index = std::numeric_limits<std::int64_t>::max();
  std::mutex mutex;
  std::atomic<bool> failed{false};
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::int64_t i = 0; i < count; ++i) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      body(i);
    } catch (...) {  // an exception must not leave the parallel region
      const std::lock_guard<std::mutex> lock(mutex);
      failed = true;
      if (i < error_index) {
        error_index = i;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace kvsim
