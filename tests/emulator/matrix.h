#pragma once

#include <cstdint>

// Matrix fragments of a warp, laid out as PTX has them.

namespace kvsim::emulator {

/// ldmatrix.x4: each lane gives the shared address of a row and gets four words.
void load_matrices(std::uint32_t address, std::uint32_t (&words)[4], bool transposed);
/// movmatrix: an 8 x 8 matrix of 16-bit elements, transposed.
std::uint32_t transpose_matrix(std::uint32_t word);

enum class Element { kBfloat16, kFloat16 };
/// mma.m16n8k16: c += a * b in float32.
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
              Element element);

}  // namespace kvsim::emulator
