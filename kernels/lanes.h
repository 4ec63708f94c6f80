#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvsim {

/// Vectors are padded with zeros to whole groups of 32 lanes. Every sum runs over 32 lanes side by
/// side and then through one fixed tree, so that scalar code and any vector width give the same
/// bits.
inline constexpr int kLanes = 32;
constexpr int padded_lanes(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

/// Sum of 32 lanes: halves are added until one is left.
inline float sum_lanes(float (&lane)[kLanes]) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
#pragma omp simd
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

/// The first steps of that tree for a dot product of padded vectors: 32 lanes to 8. kBlocks = dim /
/// 32, or 0 when only `dim` tells.
template <int kBlocks>
inline void dot_to_8_lanes(const float* a, const float* b, int dim, float* eight) {
  alignas(64) float lane[kLanes];
#pragma omp simd
  for (int l = 0; l < kLanes; ++l) lane[l] = a[l] * b[l];
  const int blocks = kBlocks > 0 ? kBlocks : dim / kLanes;
  for (int block = 1; block < blocks; ++block) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      lane[l] = std::fma(a[block * kLanes + l], b[block * kLanes + l], lane[l]);
    }
  }
#pragma omp simd
  for (int l = 0; l < 8; ++l) {
    eight[l] = (lane[l] + lane[l + 16]) + (lane[l + 8] + lane[l + 24]);
  }
}

/// Rows are taken 64 at a time, so that the last steps of the tree run over rows side by side.
template <int kBlocks>
void score_rows_of(const float* rows, const float* query, std::int64_t count, int dim, float scale,
                   float* scores) {
  constexpr int kRows = 64;
  alignas(64) float eight[kRows][8];
  for (std::int64_t begin = 0; begin < count; begin += kRows) {
    const int some = static_cast<int>(std::min<std::int64_t>(kRows, count - begin));
    for (int r = 0; r < some; ++r) {
      dot_to_8_lanes<kBlocks>(rows + (begin + r) * dim, query, dim, eight[r]);
    }
#pragma omp simd
    for (int r = 0; r < some; ++r) {
      const float* e = eight[r];
      scores[begin + r] =
          scale * (((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7])));
    }
  }
}

/// scores[i] = scale * (row i . query) for `count` rows of `dim` (a multiple of 32) floats.
inline void score_rows(const float* rows, const float* query, std::int64_t count, int dim,
                       float scale, float* scores) {
  switch (dim / kLanes) {
    case 2:
      return score_rows_of<2>(rows, query, count, dim, scale, scores);
    case 4:
      return score_rows_of<4>(rows, query, count, dim, scale, scores);
    case 8:
      return score_rows_of<8>(rows, query, count, dim, scale, scores);
    default:
      return score_rows_of<0>(rows, query, count, dim, scale, scores);
  }
}

/// sums[c] += Σ weights[i] * row i [c], rows in ascending order, for `dim` (a multiple of 32)
/// columns.
inline void accumulate_rows(const float* rows, const float* weights, std::int64_t count, int dim,
                            float* sums) {
  for (int column = 0; column < dim; column += kLanes) {
    alignas(64) float lane[kLanes];
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lane[l] = sums[column + l];
    for (std::int64_t row = 0; row < count; ++row) {
      const float weight = weights[row];
      const float* values = rows + row * dim + column;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) lane[l] = std::fma(weight, values[l], lane[l]);
    }
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) sums[column + l] = lane[l];
  }
}

}  // namespace kvsim
