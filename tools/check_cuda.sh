#!/usr/bin/env bash
# Compiles every CUDA source, without running anything: check_cuda.sh [ARCHITECTURE...]
# (default 90a). Needs nvcc, no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t files < <(find kernels -name '*.cu' | sort)
if ((${#files[@]} == 0)); then
  echo "cuda: there are no .cu files yet, nothing is compiled"
  exit 0
fi
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [[ ! -x $nvcc ]]; then
  echo "cuda: nvcc is not installed, ${#files[@]} .cu files are NOT compiled"
  exit 0
fi

architectures=("${@:-90a}")
# fmt's consteval breaks nvcc; its own generated code breaks -Wpedantic and -Wold-style-cast.
flags=(-std=c++20 -O3 -I. -DFMT_USE_CONSTEXPR=1 --expt-relaxed-constexpr
  -isystem /usr/include/eigen3 -diag-suppress=20012 -Werror=all-warnings
  "-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Werror,-ffp-contract=off,-march=x86-64-v3,-fopenmp")
for architecture in "${architectures[@]}"; do
  flags+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
done
printf '%s\0' "${files[@]}" |
  xargs -0 -P "$(nproc)" -I{} "$nvcc" "${flags[@]}" -c -o /dev/null {}
echo "cuda: ${#files[@]} .cu files compile for ${architectures[*]}"
