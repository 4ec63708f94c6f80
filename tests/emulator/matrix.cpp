#include "tests/emulator/matrix.h"

#include <array>
#include <cstring>

#include "core/float16.h"
#include "tests/emulator/warp.h"

namespace kvsim::emulator {
namespace {

using Lanes = std::array<void*, kLanes>;

constexpr std::uint32_t kAllLanes = 0xffffffffu;
constexpr int kRowBytes = 16;

/// The row at a lane's address is read when that lane comes: what another lane has not written by
/// then, without a __syncwarp before, is missing, although all lanes meet here.
struct MatrixLoad {
  std::uint16_t row[8];
  std::uint32_t* words;
};

/// 8 x 8 elements. A lane's word holds those of row lane / 4 in columns 2 (lane % 4) + {0, 1}.
struct Matrix8 {
  std::uint16_t at[8][8];

  std::uint32_t word(int lane) const {
    const std::uint16_t* pair = &at[lane / 4][lane % 4 * 2];
    return pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
  }
  void set_word(int lane, std::uint32_t word) {
    at[lane / 4][lane % 4 * 2] = static_cast<std::uint16_t>(word);
    at[lane / 4][lane % 4 * 2 + 1] = static_cast<std::uint16_t>(word >> 16);
  }
  Matrix8 transposed() const {
    Matrix8 result;
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 8; ++j) result.at[i][j] = at[j][i];
    }
    return result;
  }
};

template <bool kTransposed>
void run_load(const Lanes& lanes, std::uint32_t) {
  for (std::size_t m = 0; m < 4; ++m) {
    Matrix8 matrix;
    for (std::size_t row = 0; row < 8; ++row) {
      std::memcpy(matrix.at[row], static_cast<const MatrixLoad*>(lanes[8 * m + row])->row,
                  kRowBytes);
    }
    if (kTransposed) matrix = matrix.transposed();
    for (int lane = 0; lane < kLanes; ++lane) {
      static_cast<MatrixLoad*>(lanes[static_cast<std::size_t>(lane)])->words[m] = matrix.word(lane);
    }
  }
}

void run_transpose(const Lanes& lanes, std::uint32_t) {
  Matrix8 matrix;
  for (int lane = 0; lane < kLanes; ++lane) {
    matrix.set_word(lane, *static_cast<std::uint32_t*>(lanes[static_cast<std::size_t>(lane)]));
  }
  matrix = matrix.transposed();
  for (int lane = 0; lane < kLanes; ++lane) {
    *static_cast<std::uint32_t*>(lanes[static_cast<std::size_t>(lane)]) = matrix.word(lane);
  }
}

struct Product {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

template <Element kElement>
float low(std::uint32_t word) {
  const auto bits = static_cast<std::uint16_t>(word);
  return kElement == Element::kBfloat16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

/// Lane l holds rows l / 4 and l / 4 + 8 of a and c, column l / 4 of b; of a (16 x 16) and b
/// (16 x 8) positions 2 (l % 4) + {0, 1} of the inner extent and those 8 further on.
template <Element kElement>
void run_product(const Lanes& lanes, std::uint32_t) {
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& own = *static_cast<const Product*>(lanes[static_cast<std::size_t>(lane)]);
    for (int i = 0; i < 8; ++i) {  // elements of a: words 1 and 3 are the lower rows
      const std::uint32_t word = own.a[i / 2] >> (16 * (i % 2));
      a[lane / 4 + 8 * (i / 2 % 2)][lane % 4 * 2 + i % 2 + 8 * (i / 4)] = low<kElement>(word);
    }
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = own.b[i / 2] >> (16 * (i % 2));
      b[lane % 4 * 2 + i % 2 + 8 * (i / 2)][lane / 4] = low<kElement>(word);
    }
  }
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float* c = static_cast<const Product*>(lanes[static_cast<std::size_t>(lane)])->c;
    for (int i = 0; i < 4; ++i) c[i] += sums[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
  }
}

constexpr WarpOperation kLoad{"ldmatrix", run_load<false>};
constexpr WarpOperation kLoadTransposed{"ldmatrix.trans", run_load<true>};
constexpr WarpOperation kTranspose{"movmatrix", run_transpose};
constexpr WarpOperation kProductBfloat16{"mma of bf16", run_product<Element::kBfloat16>};
constexpr WarpOperation kProductFloat16{"mma of fp16", run_product<Element::kFloat16>};

}  // namespace

void load_matrices(std::uint32_t address, std::uint32_t (&words)[4], bool transposed) {
  MatrixLoad own{{}, words};
  std::memcpy(own.row, this_thread().cta->shared.at(address, kRowBytes, kRowBytes, "ldmatrix"),
              kRowBytes);
  meet(transposed ? kLoadTransposed : kLoad, kAllLanes, &own);
}

std::uint32_t transpose_matrix(std::uint32_t word) {
  meet(kTranspose, kAllLanes, &word);
  return word;
}

void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
              Element element) {
  Product own{c, a, {b0, b1}};
  meet(element == Element::kBfloat16 ? kProductBfloat16 : kProductFloat16, kAllLanes, &own);
}

}  // namespace kvsim::emulator
