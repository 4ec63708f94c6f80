#pragma once

#include <cstddef>
#include <functional>
#include <vector>

// Fibers: functions with stacks of their own that can be left and returned to. A switch costs a few
// nanoseconds; swapcontext() would make a system call for each, and kernels switch at every
// shuffle.

namespace kvsim::emulator {

/// Stacks for fibers, each above a page that faults. They are kept for later fibers.
class StackPool {
 public:
  static constexpr std::size_t kBytes = 256 * 1024;  // only what is touched takes memory

  ~StackPool();
  std::byte* take();
  /// `clean`: its function has returned; else frames are left on it.
  void give_back(std::byte* stack, bool clean);

 private:
  std::vector<std::byte*> free_;
  std::vector<void*> blocks_;
};

/// The stacks of this thread.
StackPool& stack_pool();

/// Neither copied nor moved: its stack refers to it.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Prepares a run of `entry`, which must not throw.
  void start(std::function<void()> entry);
  /// Runs it until it suspends itself or returns; not from inside a fiber.
  void resume();
  /// Returns to who resumed it; from inside the fiber.
  void suspend();
  bool done() const { return done_; }

 private:
  static void run();
  void finish();

  std::function<void()> entry_;
  std::byte* stack_ = nullptr;
  void* own_ = nullptr;     // stack pointer while suspended
  void* caller_ = nullptr;  // that of who resumed it
  bool done_ = true;
  // For AddressSanitizer, which has to be told of switches.
  void* fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
};

}  // namespace kvsim::emulator
