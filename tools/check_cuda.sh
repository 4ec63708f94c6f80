#!/usr/bin/env bash
# Compiles every CUDA source for sm_90a, dense attention and most of SANTA for sm_80, 89 and 120, eta
# for 89, without running anything. A kernel that spills registers to memory fails the check, but for
# heads of 256 in groups of 16, and for eta's groups above 8 and heads of 64 in shares that span
# teams: its two kinds of warps share one number of registers. Needs nvcc, no GPU: check_cuda.sh
# [ARCHITECTURE...] (default: all)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [[ ! -x $nvcc ]]; then
  echo "cuda: nvcc is not installed, NOTHING is compiled"
  exit 0
fi
nvcc_command=("$nvcc")
! command -v ccache >/dev/null || nvcc_command=(ccache "$nvcc")

# As cmake/KvsimBuild.cmake has them.
flags=(-std=c++20 -O3 -DNDEBUG -I. -DFMT_USE_CONSTEXPR=1 -DFMT_HEADER_ONLY --expt-relaxed-constexpr
  --fmad=false -isystem /usr/include/eigen3 -diag-suppress=20012,20208 -Werror=all-warnings
  "-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Werror,-ffp-contract=off,-march=x86-64-v3,-fopenmp"
  -Xptxas=-v)
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

# compile ARCHITECTURE FILE: prints what failed or spilled.
compile() {
  local architecture=$1 file=$2 log
  local object=$objects/${file//\//_}.$architecture.o
  if ! log=$("${nvcc_command[@]}" "${flags[@]}" \
    -gencode "arch=compute_$architecture,code=sm_$architecture" -c -o "$object" "$file" 2>&1); then
    printf '%s\nFAILED: %s for %s\n' "$log" "$file" "$architecture"
    return 1
  fi
  # ptxas names a function, then its spills; Li256ELi2E: heads of 256, groups of up to 16; the last
  # Lb0E: shares that span teams.
  awk -v where="$file for $architecture" '
    /Compiling entry function/ { name = $0 }
    /bytes spill stores/ && !/ 0 bytes spill stores/ && name !~ /Li256ELi2E|eta_kernel.*(Li64ELi1ELb1ELb0E|ELi2E)/ {
      print "SPILLS: " where ": " name ": " $0; bad = 1 }
    END { exit bad }' <<<"$log"
}
export -f compile
export objects
declare -p flags nvcc_command >"$objects/settings"

if (($#)); then
  architectures=("$@")
else
  architectures=(90a 80 89 120)
fi
jobs=()
for architecture in "${architectures[@]}"; do
  case $architecture in
    90a) mapfile -t files < <(find kernels -name '*.cu' | sort -r) ;;  # the longest first
    89) files=(kernels/eta/kernel.cu kernels/santa/kernel.cu kernels/dense/kernel.cu) ;;
    *) files=(kernels/santa/kernel.cu kernels/dense/kernel.cu) ;;
  esac
  for file in "${files[@]}"; do jobs+=("$architecture $file"); done
done
printf '%s\n' "${jobs[@]}" |
  xargs -P "$(nproc)" -L1 bash -c 'source "$objects/settings"; compile "$1" "$2"' _ || {
  echo "cuda: see above"
  exit 1
}
echo "cuda: ${#jobs[@]} compilations, for ${architectures[*]}"
