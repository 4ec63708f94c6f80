#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace kvsim::emulator {

/// A CTA's, of exactly the bytes that the launch asked for, all NaN at first.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes = 0);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  /// Addresses begin behind what the system keeps, so none is 0.
  std::uint32_t address_of(const void* pointer) const;
  /// The bytes at an address; a fault if they are not all inside, or not aligned.
  std::byte* at(std::uint32_t address, std::size_t bytes, std::size_t alignment,
                const char* what) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The device's memory, as cudaMalloc gives it: each block a block of the host's heap, so that
/// AddressSanitizer sees who leaves it.
class GlobalMemory {
 public:
  ~GlobalMemory();
  void* allocate(std::size_t bytes);
  /// False if it was not allocated.
  bool free(void* pointer);
  bool contains(const void* pointer, std::size_t bytes) const;

 private:
  std::map<const std::byte*, std::size_t> blocks_;
};

/// A fault if an instruction's global operand is not all inside a block, or not aligned.
void check_global(const void* pointer, std::size_t bytes, std::size_t alignment, const char* what);

}  // namespace kvsim::emulator
