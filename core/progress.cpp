#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvsim {
namespace {

constexpr std::int64_t kDrawEveryMs = 100;
constexpr std::int64_t kBarColumns = 32;

}  // namespace

Progress::Progress(std::string title, std::int64_t total)
    : title_(std::move(title)),
      total_(std::max<std::int64_t>(total, 1)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (terminal_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }
}

void Progress::advance(std::int64_t steps) {
  const std::int64_t done = done_.fetch_add(steps) + steps;
  if (!terminal_) return;
  const std::int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                               std::chrono::steady_clock::now() - start_)
                               .count();
  std::int64_t due = next_draw_ms_.load();
  // One thread wins the right to draw; the others go on.
  if (now >= due && next_draw_ms_.compare_exchange_strong(due, now + kDrawEveryMs)) draw(done);
}

void Progress::draw(std::int64_t done) const {
  const std::int64_t filled = std::min(kBarColumns, kBarColumns * done / total_);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(kBarColumns - filled), '.');
  fmt::print(stderr, "\r{} [{}] {:3}%", title_, bar,
             std::min<std::int64_t>(100, 100 * done / total_));
  std::fflush(stderr);
}

}  // namespace kvsim
