#include "core/doomed_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

// A handler may only touch memory that is there already, and lock-free atomics.
struct Slot {
  enum State : int { kFree, kFilling, kDoomed };
  std::atomic<int> state{kFree};
  std::array<char, PATH_MAX> path{};
};
static_assert(std::atomic<int>::is_always_lock_free);

constexpr std::size_t kMostFiles = 16;
std::array<Slot, kMostFiles> slots;
pid_t owner = 0;  // a forked child that dies must not take its parent's files along

void delete_files(int signal) {
  if (::getpid() == owner) {
    for (const Slot& slot : slots) {
      if (slot.state.load() == Slot::kDoomed) ::unlink(slot.path.data());
    }
  }
  ::raise(signal);  // with the default action, when this handler returns
}

/// Leaves signals alone that somebody ignores (nohup) or handles.
bool install_handlers() {
  owner = ::getpid();
  for (const int signal : {SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGXCPU, SIGXFSZ}) {
    struct sigaction current {};
    if (::sigaction(signal, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = delete_files;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
  return true;
}

}  // namespace

DoomedFile::DoomedFile(const std::string& path) : slot_(-1) {
  [[maybe_unused]] static const bool installed = install_handlers();
  KVSIM_CHECK(path.size() < PATH_MAX);
  for (std::size_t i = 0; i < kMostFiles && slot_ < 0; ++i) {
    int free = Slot::kFree;
    if (!slots[i].state.compare_exchange_strong(free, Slot::kFilling)) continue;
    path.copy(slots[i].path.data(), path.size());
    slots[i].path[path.size()] = '\0';
    slots[i].state.store(Slot::kDoomed);
    slot_ = static_cast<int>(i);
  }
  KVSIM_CHECK(slot_ >= 0);
}

DoomedFile::DoomedFile(DoomedFile&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

DoomedFile::~DoomedFile() {
  if (slot_ >= 0) slots[static_cast<std::size_t>(slot_)].state.store(Slot::kFree);
}

}  // namespace kvsim
