#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/device/geometry.h"

// Thin names for the instructions the kernels are built from: 16-byte asynchronous copies, matrix
// fragments, tensor-core products, and barriers of a CTA. All assembly is here, so that an emulator
// has one header to replace (tests/emulator).

namespace kvsim::device {

/// The shared memory that a launch asks for.
__device__ inline char* dynamic_shared() {
  extern __shared__ __align__(kSharedAlignment) char shared[];
  return shared;
}

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Starts a copy of 16 bytes. A decode step reads every row once, so they are first to be evicted.
__device__ inline void copy_async16(std::uint32_t shared, const void* global,
                                    std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(global), "l"(policy));
}

/// The same, or 16 bytes of zero; without the policy, which makes ptxas 13.0 emit an illegal
/// instruction here.
__device__ inline void copy_async16_or_zero(std::uint32_t shared, const void* global, bool copied) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(copied ? 16 : 0));
}

/// Starts a copy of 4 bytes.
__device__ inline void copy_async4(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global));
}

__device__ inline std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Asks for `bytes`, a multiple of 16 on such a boundary, where the hardware can at once.
__device__ inline void prefetch_to_l2(const void* global, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes));
#endif
}

/// A load that the compiler does not move.
__device__ inline std::uint32_t load_now(const void* source) {
  std::uint32_t word;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(word) : "l"(source));
  return word;
}

/// The value is computed here, once, and not where it is used.
__device__ inline void compute_now(int& value) { asm volatile("" : "+r"(value)); }
template <typename T>
__device__ inline void compute_now(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

/// Two words that are seen whole by the other CTAs, without an order to other accesses.
__device__ inline void store_relaxed(void* target, std::uint64_t a, std::uint64_t b) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(target), "l"(a), "l"(b)
               : "memory");
}
__device__ inline void store_relaxed(void* target, std::uint64_t word) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(target), "l"(word) : "memory");
}
__device__ inline void load_relaxed(const void* source, std::uint64_t& a, std::uint64_t& b) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(source)
               : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }

/// Waits until at most kPending of this thread's committed groups are still under way.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Waits for the first kThreads threads of the CTA, a whole number of warps.
template <int kThreads>
__device__ inline void sync_workers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kThreads) : "memory");
}
/// Waits for all threads of the CTA, wherever in the program each does.
template <int kThreads>
__device__ inline void join_threads() {
  asm volatile("barrier.sync 2, %0;" ::"n"(kThreads) : "memory");
}
/// Waits for `threads` threads of the CTA, whole warps, that finish scores or draw queries.
__device__ inline void sync_some(int threads) {
  asm volatile("barrier.sync 3, %0;" ::"r"(threads) : "memory");
}
/// Like sync_workers; true if `value` is for any of them.
template <int kThreads>
__device__ inline bool any_of_workers(bool value) {
  int any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.red.or.pred q, 1, %2, p; "
      "selp.s32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(value ? 1 : 0), "n"(kThreads)
      : "memory");
  return any != 0;
}

// Barriers in shared memory: what a thread has written before it arrives is there for those who
// have waited. Most are used once; those that are used again have phases of alternating parity.

__device__ inline void init_barrier(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
__device__ inline void arrive(std::uint64_t* barrier) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
      : "memory");
}
/// Whether wait_for would return at once.
__device__ inline bool is_past(std::uint64_t* barrier, int parity) {
  int done;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
/// Where the hardware can, a waiting thread is suspended: spinning warps would slow the others
/// down.
__device__ inline void wait_for(std::uint64_t* barrier, int parity = 0) {
  int done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#endif
  }
}

struct Fragment4 {
  std::uint32_t r[4];
};

__device__ inline Fragment4 load_matrix(std::uint32_t shared) {
  Fragment4 f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(shared)
               : "memory");
  return f;
}

__device__ inline Fragment4 load_matrix_transposed(std::uint32_t shared) {
  Fragment4 f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(shared)
               : "memory");
  return f;
}

/// Transposes an 8 x 8 matrix of 16-bit elements held by a warp.
__device__ inline std::uint32_t transpose8x8(std::uint32_t fragment) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(fragment));
  return out;
}

/// c += a (16 x 16) * b (16 x 8), float32 accumulation.
template <typename T>
__device__ inline void multiply_accumulate(float (&c)[4], const Fragment4& a, std::uint32_t b0,
                                           std::uint32_t b1);

template <>
__device__ inline void multiply_accumulate<__nv_bfloat16>(float (&c)[4], const Fragment4& a,
                                                          std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiply_accumulate<__half>(float (&c)[4], const Fragment4& a,
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

template <typename T>
__device__ inline std::uint32_t pack2(float low, float high);
template <>
__device__ inline std::uint32_t pack2<__nv_bfloat16>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ inline std::uint32_t pack2<__half>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <typename T>
__device__ inline float2 unpack2(std::uint32_t bits);
template <>
__device__ inline float2 unpack2<__nv_bfloat16>(std::uint32_t bits) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
template <>
__device__ inline float2 unpack2<__half>(std::uint32_t bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

/// 2^x, 2 ulp; for weights that no selection depends on.
__device__ inline float fast_exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// √x, 1 ulp; for bounds that a kernel dumps.
__device__ inline float fast_sqrt(float x) {
  float out;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// 1 / x, 1 ulp; for weights.
__device__ inline float fast_inverse(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

}  // namespace kvsim::device
