#include "tests/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define KVSIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVSIM_ASAN 1
#endif
#endif
#ifdef KVSIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves what a called function must leave as it found it, and goes on with another stack.
extern "C" void kvsim_switch_stack(void** saved, void* next);
asm(R"(
.text
.globl kvsim_switch_stack
.type kvsim_switch_stack, @function
kvsim_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvsim_switch_stack, .-kvsim_switch_stack
)");

namespace kvsim::emulator {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStacksAtOnce = 64;
constexpr int kSavedRegisters = 6;

/// The fiber that runs for the first time: its entry has no argument.
thread_local Fiber* starting = nullptr;

#ifdef KVSIM_ASAN
void before_switch(void** fake_stack, const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void after_switch(void* fake_stack, const void** bottom, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
void forget_frames(std::byte* stack) { __asan_unpoison_memory_region(stack, StackPool::kBytes); }
#else
void before_switch(void**, const void*, std::size_t) {}
void after_switch(void*, const void**, std::size_t*) {}
void forget_frames(std::byte*) {}
#endif

}  // namespace

StackPool::~StackPool() {
  for (void* block : blocks_) munmap(block, kStacksAtOnce * (kBytes + kPage));
}

std::byte* StackPool::take() {
  if (free_.empty()) {
    constexpr std::size_t kEach = kBytes + kPage;
    void* block = mmap(nullptr, kStacksAtOnce * kEach, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    blocks_.push_back(block);
    for (std::size_t i = 0; i < kStacksAtOnce; ++i) {
      std::byte* guard = static_cast<std::byte*>(block) + i * kEach;
      mprotect(guard, kPage, PROT_NONE);
      free_.push_back(guard + kPage);
    }
  }
  std::byte* stack = free_.back();
  free_.pop_back();
  return stack;
}

void StackPool::give_back(std::byte* stack, bool clean) {
  if (!clean) forget_frames(stack);
  free_.push_back(stack);
}

StackPool& stack_pool() {
  thread_local StackPool pool;
  return pool;
}

Fiber::~Fiber() {
  if (stack_ != nullptr) stack_pool().give_back(stack_, done_);
}

void Fiber::start(std::function<void()> entry) {
  entry_ = std::move(entry);
  if (stack_ == nullptr) stack_ = stack_pool().take();
  done_ = false;
  // As if run() had been called: its frame begins 8 bytes below a boundary of 16.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + StackPool::kBytes) - 1;
  *top = 0;  // where backtraces end
  *--top = reinterpret_cast<std::uintptr_t>(&Fiber::run);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = 0;
  own_ = top;
}

void Fiber::resume() {
  void* fake_stack = nullptr;
  starting = this;
  before_switch(&fake_stack, stack_, StackPool::kBytes);
  kvsim_switch_stack(&caller_, own_);
  after_switch(fake_stack, nullptr, nullptr);
  if (!done_) return;
  stack_pool().give_back(std::exchange(stack_, nullptr), /*clean=*/true);
}

void Fiber::suspend() {
  before_switch(&fake_stack_, caller_stack_, caller_bytes_);
  kvsim_switch_stack(&own_, caller_);
  after_switch(fake_stack_, &caller_stack_, &caller_bytes_);
}

void Fiber::run() {
  Fiber& self = *starting;
  after_switch(nullptr, &self.caller_stack_, &self.caller_bytes_);
  self.entry_();
  self.finish();
}

void Fiber::finish() {
  done_ = true;
  before_switch(nullptr, caller_stack_, caller_bytes_);
  kvsim_switch_stack(&own_, caller_);
  __builtin_unreachable();
}

}  // namespace kvsim::emulator
