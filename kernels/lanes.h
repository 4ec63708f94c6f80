#pragma once

#include <cmath>
#include <cstdint>

namespace kvsim {

/// Vectors are padded with zeros to whole groups of 32 lanes. Every sum runs over 32 lanes side by
/// side and then through one fixed tree, so that scalar code and any vector width give the same bits.
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

/// Dot product of two padded vectors; kBlocks = dim / 32, or 0 when only `dim` tells.
template <int kBlocks>
inline float dot(const float* a, const float* b, int dim) {
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
  return sum_lanes(lane);
}

template <int kBlocks>
void score_rows_of(const float* rows, const float* query, std::int64_t count, int dim, float scale,
                   float* scores) {
  for (std::int64_t row = 0; row < count; ++row) {
    scores[row] = scale * dot<kBlocks>(rows + row * dim, query, dim);
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

/// sums[c] += Σ weights[i] * row i [c], rows in ascending order, for `dim` (a multiple of 32) columns.
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
