#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/emulator/barriers.h"
#include "tests/emulator/scheduler.h"
#include "tests/emulator/warp.h"

// The language of kernels, as far as they use it, in terms of the emulated threads. nvcc knows most
// of this without a header; here ptx.cuh includes it.

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__  // libstdc++ writes __attribute__((__noinline__))
// CTAs of launches that are not cooperative run one after the other, so one variable serves all.
// No cooperative kernel has such a variable: theirs is dynamic_shared().
#define __shared__ static

inline void __syncthreads() { kvsim::emulator::sync_barrier(0, 0); }

inline void __syncwarp(unsigned mask = 0xffffffffu) { kvsim::emulator::sync_warp(mask); }
inline unsigned __ballot_sync(unsigned mask, int value) {
  return kvsim::emulator::ballot(mask, value != 0);
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline int __all_sync(unsigned mask, int value) { return __ballot_sync(mask, value) == mask; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return kvsim::emulator::sum_of_lanes(mask, value);
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return static_cast<int>(kvsim::emulator::sum_of_lanes(mask, static_cast<unsigned>(value)));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return kvsim::emulator::or_of_lanes(mask, value);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return kvsim::emulator::max_of_lanes(mask, value);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return ~kvsim::emulator::max_of_lanes(mask, ~value);
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  return kvsim::emulator::equal_lanes(mask, std::bit_cast<unsigned>(value));
}

namespace kvsim::emulator {

template <std::size_t kBytes>
struct WordOf;
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = std::uint64_t;
};

template <typename T>
T value_of_lane(unsigned mask, T value, int source) {
  using Word = typename WordOf<sizeof(T)>::Type;
  Shuffle own{std::bit_cast<Word>(value), source};
  shuffle(mask, own);
  return std::bit_cast<T>(static_cast<Word>(own.value));
}

}  // namespace kvsim::emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  return kvsim::emulator::value_of_lane(mask, value, source & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  const int lane = kvsim::emulator::this_thread().lane;
  return kvsim::emulator::value_of_lane(mask, value, lane ^ distance);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int lane = kvsim::emulator::this_thread().lane;
  return kvsim::emulator::value_of_lane(mask, value, lane < distance ? lane : lane - distance);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
  const int lane = kvsim::emulator::this_thread().lane;
  return kvsim::emulator::value_of_lane(mask, value, lane + distance > 31 ? lane : lane + distance);
}

namespace kvsim::emulator {

/// Reads and writes memory as one step, others before it or after it.
template <typename T, typename Change>
T atomically(T* target, const Change& change) {
  Thread& self = this_thread();
  self.cta->scheduler->maybe_yield(self);
  const T before = *target;
  *target = change(before);
  return before;
}

}  // namespace kvsim::emulator

template <typename T>
T atomicAdd(T* target, T value) {
  return kvsim::emulator::atomically(target, [&](T before) { return before + value; });
}
template <typename T>
T atomicMax(T* target, T value) {
  return kvsim::emulator::atomically(target, [&](T before) { return std::max(before, value); });
}
template <typename T>
T atomicOr(T* target, T value) {
  return kvsim::emulator::atomically(target, [&](T before) { return before | value; });
}

template <typename T>
T __ldg(const T* source) {
  return *source;
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __popc(unsigned word) { return std::popcount(word); }
inline int __clz(int word) { return std::countl_zero(static_cast<unsigned>(word)); }
inline int __ffs(int word) {
  return word == 0 ? 0 : std::countr_zero(static_cast<unsigned>(word)) + 1;
}
inline float __fdividef(float a, float b) { return a / b; }
/// Rounds up; what does not fit becomes the nearest that does.
inline int __float2int_ru(float value) {
  if (std::isnan(value)) return 0;
  const double up = std::ceil(static_cast<double>(value));
  return static_cast<int>(std::clamp(up, -2147483648.0, 2147483647.0));
}
inline float cospif(float x) { return std::cos(x * 3.14159274f); }
inline float sinpif(float x) { return std::sin(x * 3.14159274f); }

// As CUDA has them: of two types, the wider or the unsigned one.
template <typename A, typename B>
constexpr auto min(A a, B b) {
  using Common = decltype(a + b);
  return static_cast<Common>(b) < static_cast<Common>(a) ? static_cast<Common>(b)
                                                         : static_cast<Common>(a);
}
template <typename A, typename B>
constexpr auto max(A a, B b) {
  using Common = decltype(a + b);
  return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(b)
                                                         : static_cast<Common>(a);
}
