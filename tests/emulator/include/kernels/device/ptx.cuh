#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/geometry.h"
#include "tests/emulator/barriers.h"
#include "tests/emulator/matrix.h"

// Takes the place of kernels/device/ptx.cuh where kernels are emulated: the same names.

namespace kvsim::device {

inline char* dynamic_shared() {
  return reinterpret_cast<char*>(emulator::this_thread().cta->shared.data());
}

inline std::uint32_t shared_address(const void* pointer) {
  return emulator::this_thread().cta->shared.address_of(pointer);
}

/// Starts a copy; `copied` false: of zeros.
inline void emulate_copy(std::uint32_t shared, const void* global, std::size_t bytes, bool copied) {
  emulator::Thread& self = emulator::this_thread();
  if (copied) emulator::check_global(global, bytes, bytes, "cp.async");
  self.copies.start(self.cta->shared.at(shared, bytes, bytes, "cp.async"),
                    copied ? static_cast<const std::byte*>(global) : nullptr, bytes);
}
inline void copy_async16(std::uint32_t shared, const void* global, std::uint64_t) {
  emulate_copy(shared, global, 16, true);
}
inline void copy_async16_or_zero(std::uint32_t shared, const void* global, bool copied) {
  emulate_copy(shared, global, 16, copied);
}
inline void copy_async4(std::uint32_t shared, const void* global) {
  emulate_copy(shared, global, 4, true);
}
inline std::uint64_t evict_first_policy() { return 0; }

inline void prefetch_to_l2(const void* global, int bytes) {
  emulator::check_global(global, static_cast<std::size_t>(bytes), 16, "a prefetch");
  if (bytes % 16 != 0) emulator::fault("a prefetch of no multiple of 16 bytes");
}

inline std::uint32_t load_now(const void* source) {
  std::uint32_t word;
  std::memcpy(&word, source, sizeof(word));
  return word;
}
inline void compute_now(int&) {}
template <typename T>
void compute_now(T*&) {}

inline void store_relaxed(void* target, std::uint64_t a, std::uint64_t b) {
  emulator::Thread& self = emulator::this_thread();
  emulator::check_global(target, 16, 16, "st.relaxed");
  static_cast<std::uint64_t*>(target)[0] = a;
  static_cast<std::uint64_t*>(target)[1] = b;
  self.cta->scheduler->published(target);
  self.cta->scheduler->maybe_yield(self);
}
/// Lookers look at pairs of words, on boundaries of 16 bytes.
inline void store_relaxed(void* target, std::uint64_t word) {
  emulator::Thread& self = emulator::this_thread();
  emulator::check_global(target, 8, 8, "st.relaxed");
  *static_cast<std::uint64_t*>(target) = word;
  self.cta->scheduler->published(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(target) / 16 * 16));
  self.cta->scheduler->maybe_yield(self);
}
inline void load_relaxed(const void* source, std::uint64_t& a, std::uint64_t& b) {
  emulator::Thread& self = emulator::this_thread();
  emulator::check_global(source, 16, 16, "ld.relaxed");
  self.cta->scheduler->before_look(self, source);
  a = static_cast<const std::uint64_t*>(source)[0];
  b = static_cast<const std::uint64_t*>(source)[1];
}

inline void commit_copies() { emulator::this_thread().copies.commit(); }
template <int kPending>
void wait_copies() {
  emulator::this_thread().copies.wait(kPending);
}

template <int kThreads>
void sync_workers() {
  emulator::sync_barrier(1, kThreads);
}
template <int kThreads>
void join_threads() {
  emulator::sync_barrier(2, kThreads);
}
inline void sync_some(int threads) { emulator::sync_barrier(3, threads); }
template <int kThreads>
bool any_of_workers(bool value) {
  return emulator::sync_barrier(1, kThreads, value);
}

inline void init_barrier(std::uint64_t* barrier, int arrivals) {
  emulator::init_mbarrier(barrier, arrivals);
}
inline void arrive(std::uint64_t* barrier) { emulator::arrive_mbarrier(barrier); }
inline bool is_past(std::uint64_t* barrier, int parity) {
  return emulator::test_mbarrier(barrier, parity);
}
inline void wait_for(std::uint64_t* barrier, int parity = 0) {
  emulator::wait_mbarrier(barrier, parity);
}

struct Fragment4 {
  std::uint32_t r[4];
};

inline Fragment4 load_matrix(std::uint32_t shared) {
  Fragment4 f;
  emulator::load_matrices(shared, f.r, false);
  return f;
}
inline Fragment4 load_matrix_transposed(std::uint32_t shared) {
  Fragment4 f;
  emulator::load_matrices(shared, f.r, true);
  return f;
}
inline std::uint32_t transpose8x8(std::uint32_t fragment) {
  return emulator::transpose_matrix(fragment);
}

template <typename T>
constexpr emulator::Element element_of() {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  return std::is_same_v<T, __half> ? emulator::Element::kFloat16 : emulator::Element::kBfloat16;
}

template <typename T>
void multiply_accumulate(float (&c)[4], const Fragment4& a, std::uint32_t b0, std::uint32_t b1) {
  emulator::multiply(c, a.r, b0, b1, element_of<T>());
}

template <typename T>
std::uint32_t pack2(float low, float high) {
  const bool half = element_of<T>() == emulator::Element::kFloat16;
  const std::uint32_t a = half ? float_to_fp16(low) : float_to_bf16(low);
  const std::uint32_t b = half ? float_to_fp16(high) : float_to_bf16(high);
  return a | b << 16;
}

template <typename T>
float2 unpack2(std::uint32_t bits) {
  const auto low = static_cast<std::uint16_t>(bits);
  const auto high = static_cast<std::uint16_t>(bits >> 16);
  const bool half = element_of<T>() == emulator::Element::kFloat16;
  return half ? float2{fp16_to_float(low), fp16_to_float(high)}
              : float2{bf16_to_float(low), bf16_to_float(high)};
}

inline float flushed(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float fast_exp2(float x) { return flushed(std::exp2(x)); }
inline float fast_sqrt(float x) { return std::sqrt(flushed(x)); }
inline float fast_inverse(float x) { return flushed(1 / flushed(x)); }

}  // namespace kvsim::device
