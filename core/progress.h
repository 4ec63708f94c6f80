#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace kvsim {

/// A progress bar on standard error, drawn only if that is a terminal. Threads may advance it at
/// once; the line is erased when the object goes.
class Progress {
 public:
  Progress(std::string title, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t steps = 1);

 private:
  void draw(std::int64_t done) const;

  std::string title_;
  std::int64_t total_;
  bool terminal_;
  std::atomic<std::int64_t> done_{0};
  std::atomic<std::int64_t> next_draw_ms_{
      0};  // since start_, so that at most ten a second are drawn
  std::chrono::steady_clock::time_point start_;
};

}  // namespace kvsim
