#include "tests/emulator/memory.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>

#include "kernels/device/geometry.h"
#include "tests/emulator/device.h"
#include "tests/emulator/scheduler.h"

namespace kvsim::emulator {
namespace {

constexpr int kPoison = 0xFF;
constexpr std::align_val_t kSharedBoundary{device::kSharedAlignment};
constexpr std::align_val_t kGlobalBoundary{256};
constexpr std::uint32_t kFirstAddress = kSystemSharedBytes;

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(::operator new(bytes, kSharedBoundary));
  std::memset(data_, kPoison, bytes);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::operator delete(data_, kSharedBoundary);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::uint32_t SharedMemory::address_of(const void* pointer) const {
  return kFirstAddress + static_cast<std::uint32_t>(static_cast<const std::byte*>(pointer) - data_);
}

std::byte* SharedMemory::at(std::uint32_t address, std::size_t bytes, std::size_t alignment,
                            const char* what) const {
  if (address < kFirstAddress || address - kFirstAddress + bytes > bytes_) {
    fault(fmt::format("{} of {} bytes at shared offset {}, of {} bytes", what, bytes,
                      std::int64_t{address} - kFirstAddress, bytes_));
  }
  if (address % alignment != 0) {
    fault(fmt::format("{} at shared offset {}, which is no multiple of {}", what,
                      address - kFirstAddress, alignment));
  }
  return data_ + (address - kFirstAddress);
}

GlobalMemory::~GlobalMemory() {
  for (const auto& [data, bytes] : blocks_) {
    ::operator delete(const_cast<std::byte*>(data), kGlobalBoundary);
  }
}

void* GlobalMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  auto* data = static_cast<std::byte*>(::operator new(bytes, kGlobalBoundary));
  std::memset(data, kPoison, bytes);
  blocks_.emplace(data, bytes);
  return data;
}

bool GlobalMemory::free(void* pointer) {
  if (pointer == nullptr) return true;
  if (blocks_.erase(static_cast<const std::byte*>(pointer)) == 0) return false;
  ::operator delete(pointer, kGlobalBoundary);
  return true;
}

bool GlobalMemory::contains(const void* pointer, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(pointer);
  auto block = blocks_.upper_bound(first);
  if (block == blocks_.begin()) return false;
  --block;
  return first + bytes <= block->first + block->second;
}

void check_global(const void* pointer, std::size_t bytes, std::size_t alignment, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    fault(fmt::format("{} at global {}, which is no multiple of {}", what, pointer, alignment));
  }
  if (!Device::instance().memory.contains(pointer, bytes)) {
    fault(fmt::format("{} of {} bytes at global {}, which nobody allocated", what, bytes, pointer));
  }
}

}  // namespace kvsim::emulator
