#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>
#include <vector>

#include "tests/emulator/random.h"
#include "tests/emulator/thread.h"

namespace kvsim::emulator {

/// What a kernel must not do: the message names the CTA, the warp and the lane that did it.
[[noreturn]] void fault(const std::string& what);

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  bool cooperative = false;
};

/// Runs one launch on one thread of this machine. Which warp goes on, in which order its lanes do,
/// and which of them are left behind is drawn from a seed, so a failure can be repeated. Odd seeds
/// draw anew each time; even ones give warps priorities that change seldom, so that some fall far
/// behind others.
class Scheduler {
 public:
  Scheduler(const LaunchShape& shape, std::function<void()> kernel, std::uint64_t seed);

  /// Throws RuntimeError if the kernel does what it must not, or if nobody can go on.
  void run();

  // For threads of the launch:

  /// Lets others run first, sometimes; and a copy of the thread may be done early.
  void maybe_yield(Thread& self);
  /// Stops until somebody wakes the thread.
  void block(Thread& self);
  void wake(Thread& thread);
  /// Comes before a look at memory that others publish. Who looks once more at what nobody has
  /// published in this launch stops until somebody does, or until nobody else can go on: looking
  /// again and again, as kernels do, it would only see the same.
  void before_look(Thread& self, const void* address);
  void published(const void* address);

 private:
  std::unique_ptr<Cta> make_cta(unsigned number);
  void start(Cta& cta);
  void run_thread(Thread& thread);
  void run_until_done();
  void run_some(Warp& warp);
  Warp& next_warp();
  void returned(Thread& thread);
  void nobody_can_run();
  [[noreturn]] void report(const char* what) const;

  LaunchShape shape_;
  std::function<void()> kernel_;
  Random random_;
  bool by_priority_;
  std::vector<std::unique_ptr<Cta>> ctas_;  // that run
  std::vector<Warp*> runnable_;
  std::unordered_set<const void*> published_;
  std::map<const void*, std::vector<Thread*>> lookers_;
  int idle_rounds_ = 0;           // since somebody stopped waiting: of all who look at memory
  std::uint64_t idle_turns_ = 0;  // and of warps
  int live_ctas_ = 0;
  std::exception_ptr fault_;
};

/// A line for each warp of a CTA that waits: which lanes wait for what.
std::string waiting_warps(const Cta& cta);

}  // namespace kvsim::emulator
