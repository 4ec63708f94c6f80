#include <algorithm>
#include <cstring>

#include "tests/emulator/thread.h"

namespace kvsim::emulator {

void AsyncCopies::start(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::memset(target, 0xFF, bytes);
  copies_.push_back({target, source, bytes});
}

void AsyncCopies::commit() { groups_.push_back(copies_.size()); }

void AsyncCopies::wait(std::size_t groups_left) {
  if (groups_.size() <= groups_left) return;
  const std::size_t done = groups_[groups_.size() - groups_left - 1];
  for (std::size_t i = 0; i < done; ++i) {
    const Copy& copy = copies_[i];
    if (copy.source == nullptr) {
      std::memset(copy.target, 0, copy.bytes);
    } else {
      std::memcpy(copy.target, copy.source, copy.bytes);
    }
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(done));
  groups_.erase(groups_.begin(), groups_.end() - static_cast<std::ptrdiff_t>(groups_left));
  for (std::size_t& end : groups_) end -= done;
}

void AsyncCopies::finish_oldest() {
  if (!groups_.empty()) wait(groups_.size() - 1);
}

}  // namespace kvsim::emulator
