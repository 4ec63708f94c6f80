// The emulator finds what kernels must not do: each kernel here has one bug, beside one that is
// right.

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/device/buffer.cuh"
#include "kernels/device/enqueue.cuh"
#include "kernels/device/ptx.cuh"
#include "tests/catch.h"
#include "tests/emulator/device.h"

namespace kvsim {
namespace {

using namespace device;
using testing::ContainsSubstring;

constexpr int kSome = 16;  // schedules

template <typename... Arguments>
void run(void (*kernel)(Arguments...), int ctas, int threads, Arguments... arguments) {
  enqueue(kernel, static_cast<unsigned>(ctas), static_cast<unsigned>(threads), 4096, nullptr,
          arguments...);
}

/// The values that a kernel of one CTA writes, one for each thread.
std::vector<float> outcome(void (*kernel)(const float*, float*), int threads) {
  const auto count = static_cast<std::size_t>(threads);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  DeviceBuffer<float> in(count);
  DeviceBuffer<float> out(count);
  in.upload(values);
  run<const float*, float*>(kernel, 1, threads, in.data(), out.data());
  out.download(values);
  return values;
}

/// Of some schedules, how many leave each thread with its neighbour's value.
int right_schedules(void (*kernel)(const float*, float*), int threads = 64) {
  int right = 0;
  for (int i = 0; i < kSome; ++i) {
    const std::vector<float> values = outcome(kernel, threads);
    bool all = true;
    for (int t = 0; t < threads; ++t) {
      all = all && values[static_cast<std::size_t>(t)] == static_cast<float>(t ^ 1);
    }
    right += all;
  }
  return right;
}

enum class Bug { kNone, kNoSync, kNoWait, kOneArrivalLess, kWrongParity };

/// Neighbours swap values over shared memory.
template <Bug kBug>
__global__ void swap_in_warp(const float* in, float* out) {
  auto* values = reinterpret_cast<float*>(dynamic_shared());
  values[threadIdx.x] = in[threadIdx.x];
  if (kBug != Bug::kNoSync) __syncwarp();
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

/// The same by asynchronous copies.
template <Bug kBug>
__global__ void swap_by_copies(const float* in, float* out) {
  auto* values = reinterpret_cast<float*>(dynamic_shared());
  copy_async4(shared_address(values + threadIdx.x), in + threadIdx.x);
  commit_copies();
  if (kBug != Bug::kNoWait) wait_copies<0>();
  __syncwarp();
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

/// The same over a barrier in shared memory, in two phases.
template <Bug kBug>
__global__ void swap_over_barrier(const float* in, float* out) {
  auto* barrier = reinterpret_cast<std::uint64_t*>(dynamic_shared());
  auto* values = reinterpret_cast<float*>(barrier + 1);
  const int threads = static_cast<int>(blockDim.x);
  if (threadIdx.x == 0) init_barrier(barrier, threads);
  __syncthreads();
  values[threadIdx.x] = 0;
  arrive(barrier);
  wait_for(barrier, 0);
  values[threadIdx.x] = in[threadIdx.x];
  if (kBug != Bug::kOneArrivalLess || threadIdx.x != 5) arrive(barrier);
  wait_for(barrier, kBug == Bug::kWrongParity ? 0 : 1);
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

TEST_CASE("a missing __syncwarp shows in some schedule") {
  CHECK(right_schedules(swap_in_warp<Bug::kNone>) == kSome);
  CHECK(right_schedules(swap_in_warp<Bug::kNoSync>) < kSome);
}

TEST_CASE("what is read before its copy is waited for is NaN") {
  CHECK(right_schedules(swap_by_copies<Bug::kNone>) == kSome);
  CHECK(right_schedules(swap_by_copies<Bug::kNoWait>) == 0);
}

TEST_CASE("barriers in shared memory count arrivals and have phases") {
  CHECK(right_schedules(swap_over_barrier<Bug::kNone>) == kSome);
  // Too early for some; or too late, when the phase of that parity has begun again.
  CHECK_THROWS_WITH(right_schedules(swap_over_barrier<Bug::kWrongParity>),
                    ContainsSubstring("deadlock") && ContainsSubstring("parity 0"));
  CHECK_THROWS_WITH(outcome(swap_over_barrier<Bug::kOneArrivalLess>, 64),
                    ContainsSubstring("deadlock") && ContainsSubstring("parity 1"));
}

__global__ void shuffle_in_half_a_warp(float* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  } else {
    __syncwarp();
  }
}

__global__ void return_before_others_vote(float* out) {
  if (threadIdx.x == 3) return;
  out[threadIdx.x] = __any_sync(0xffffffffu, 1) != 0 ? 1.0f : 0.0f;
}

__global__ void wait_for_fewer(float* out) {
  if (threadIdx.x < 32) {
    sync_some(64);
  } else {
    sync_some(96);
  }
  out[threadIdx.x] = 0;
}

__global__ void copy_to_odd_place(float* out) {
  copy_async16(shared_address(dynamic_shared() + 8), out, 0);
}

__global__ void copy_from_behind_the_end(float* out) {
  copy_async16(shared_address(dynamic_shared()), out + 64, 0);
}

__global__ void copy_behind_shared_memory(float* out) {
  copy_async16(shared_address(dynamic_shared() + 4096), out, 0);
}

__global__ void arrive_too_early(float*) {
  arrive(reinterpret_cast<std::uint64_t*>(dynamic_shared()));
}

TEST_CASE("what no thread may do names who did it") {
  DeviceBuffer<float> out(64);
  const auto fails_with = [&](void (*kernel)(float*), const char* text) {
    CHECK_THROWS_WITH(run(kernel, 1, 64, out.data()),
                      ContainsSubstring(text) && ContainsSubstring("CTA (0, 0, 0), warp"));
  };
  fails_with(shuffle_in_half_a_warp, "while lane");
  fails_with(return_before_others_vote, "have returned");
  fails_with(wait_for_fewer, "others wait for");
  fails_with(copy_to_odd_place, "no multiple of 16");
  fails_with(copy_from_behind_the_end, "nobody allocated");
  fails_with(copy_behind_shared_memory, "at shared offset 4096, of 4096");
  fails_with(arrive_too_early, "which is no barrier");
}

/// Each CTA but the last waits for the next one's word.
__global__ void pass_on(std::uint64_t* words) {
  std::uint64_t a = 1;
  std::uint64_t b = 0;
  const unsigned own = blockIdx.x;
  if (own + 1 < gridDim.x) {
    do {
      load_relaxed(words + 2 * (own + 1), a, b);
    } while (a == 0);
  }
  store_relaxed(words + 2 * own, a + 1, 0);
}

TEST_CASE("only CTAs of cooperative launches may wait for each other") {
  constexpr unsigned kCtas = 6;
  std::vector<std::uint64_t> words(2 * kCtas);
  DeviceBuffer<std::uint64_t> on_device(words.size());
  const auto launch = [&](unsigned ctas, bool cooperative) {
    on_device.fill_bytes(0);
    const emulator::LaunchShape shape{ctas, 32, 0, cooperative};
    return emulator::launch(shape, nullptr, [&] { pass_on(on_device.data()); });
  };
  CHECK(launch(kCtas, true) == emulator::LaunchError::kNone);
  on_device.download(words);
  CHECK(words.front() == kCtas + 1);
  CHECK_THROWS_WITH(launch(kCtas, false), ContainsSubstring("memory that nobody has written"));
  CHECK(launch(1000, true) == emulator::LaunchError::kTooLarge);
}

__global__ void products(const std::uint32_t* a, const std::uint32_t* b, float* c) {
  const std::uint32_t lane = threadIdx.x;
  auto* rows = reinterpret_cast<std::uint32_t*>(dynamic_shared());
  for (std::uint32_t i = lane; i < 128; i += 32) rows[i] = a[i];
  __syncwarp();
  // Rows of 16 elements; matrices in the order of mma's operand: the upper rows, the lower ones.
  const Fragment4 left = load_matrix(shared_address(rows + lane % 16 * 8 + lane / 16 * 4));
  float sums[4] = {};
  multiply_accumulate<__half>(sums, left, b[lane / 4 * 8 + lane % 4],
                              b[lane / 4 * 8 + lane % 4 + 4]);
  for (std::uint32_t i = 0; i < 4; ++i) {
    c[(lane / 4 + 8 * (i / 2)) * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

TEST_CASE("matrix fragments lie where PTX says") {
  std::vector<std::uint32_t> a(128);
  std::vector<std::uint32_t> b(64);
  const auto small = [](std::uint32_t i) { return static_cast<float>(i * 7 % 11) - 5; };
  for (std::uint32_t i = 0; i < 128; ++i) a[i] = pack2<__half>(small(2 * i), small(2 * i + 1));
  for (std::uint32_t i = 0; i < 64; ++i) b[i] = pack2<__half>(small(3 * i), small(3 * i + 5));
  DeviceBuffer<std::uint32_t> left(a.size());
  DeviceBuffer<std::uint32_t> right(b.size());
  DeviceBuffer<float> out(128);
  left.upload(a);
  right.upload(b);
  run<const std::uint32_t*, const std::uint32_t*, float*>(products, 1, 32, left.data(),
                                                          right.data(), out.data());
  std::vector<float> c(128);
  out.download(c);
  const auto element = [](const std::vector<std::uint32_t>& matrix, std::size_t row,
                          std::size_t k) {
    const float2 pair = unpack2<__half>(matrix[row * 8 + k / 2]);
    return k % 2 == 0 ? pair.x : pair.y;
  };
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += element(a, row, k) * element(b, column, k);
      CHECK(c[row * 8 + column] == sum);
    }
  }
}

__global__ void vote(const float* in, float* out) {
  const unsigned lane = threadIdx.x % 32;
  const float other = __shfl_xor_sync(0xffffffffu, in[threadIdx.x], 1);
  const bool odd = lane % 2 == 1;
  const bool right = __ballot_sync(0xffffffffu, odd) == 0xaaaaaaaau &&
                     __reduce_add_sync(0xffffffffu, lane) == 496 &&
                     __reduce_max_sync(0xffffffffu, lane) == 31 &&
                     __match_any_sync(0xffffffffu, lane / 4) == 0xfu << (lane & 28) &&
                     __all_sync(0xffffffffu, !odd) == 0 && any_of_workers<64>(threadIdx.x == 63);
  out[threadIdx.x] = right ? other : -1;
}

TEST_CASE("shuffles and votes of a warp") { CHECK(right_schedules(vote) == kSome); }

}  // namespace
}  // namespace kvsim
