#!/usr/bin/env bash
# Checks and times the CUDA kernels on a machine with a GPU: gpu_check.sh STAGE BINARIES OUTPUT
#
#   STAGE     tests      the GPU tests, and results of every method on many shapes
#             sanitizer  compute-sanitizer (memcheck, racecheck, synccheck) on tiny shapes
#             bytes      DRAM and L2 bytes of every kernel by ncu, against the work record
#             bench      times in turn with PyTorch's FA2 and cuDNN attention;
#                        BENCH=canon (default), shapes, layouts, eta, eta-sizes or santapp says
#                        which shapes
#   BINARIES  folder with a static kvsim and, for `tests`, test_kernels and test_sim
#             (-DKVSIM_STATIC=ON)
#   OUTPUT    folder for CSVs and logs, made if it is missing
#
# Each stage takes less than ten minutes on an H200. Needs nothing of a build but BINARIES: NVIDIA's
# tools, python3, and PyTorch for `bench`. METHODS and PROCESSES in the environment replace the
# methods and the number of processes. Clocks are left alone. Exit 0: everything passed.
set -euo pipefail
export PATH=$PATH:/usr/local/cuda/bin  # compute-sanitizer, ncu

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() {
  echo "gpu_check: $*" >&2
  exit 2
}
(($# == 3)) || die "expected STAGE BINARIES OUTPUT (see the head of $0)"
stage=$1
[[ -x $2/kvsim ]] || die "$2: no program kvsim in it"
binaries=$(cd "$2" && pwd)
mkdir -p "$3"
output=$(cd "$3" && pwd)
kvsim=$binaries/kvsim
one_launch="dense santa-sys santa-prop santa-iid santa-strat santa-flash topk \
bernoulli-qk:k_layout=feature eta:thresholds=union santapp:grouping=contiguous"
read -r -a methods <<<"${METHODS:-$one_launch}"
# Left out of `bytes`: of two launches, between which the profiler empties the cache.
not_profiled=()
[[ -n ${METHODS:-} ]] || not_profiled=(santa-sys:scores=bernoulli,k_layout=feature)
processes=${PROCESSES:-5}
failed=0

# attempt LOG COMMAND...: runs it, keeps its output, and goes on whatever comes of it.
attempt() {
  local log=$output/$1 start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    printf 'passed  %4d s  %s\n' $((SECONDS - start)) "$log"
  else
    printf 'FAILED  %4d s  %s\n' $((SECONDS - start)) "$log"
    tail -n 12 "$log"
    failed=1
  fi
}

# check NAME ARGUMENTS...: results of all methods on the shapes that the arguments name.
check() {
  local name=$1
  shift
  attempt "check_$name.txt" "$kvsim" measure --check --method "${methods[@]}" "${not_profiled[@]}" \
    "$@"
}

stage_tests() {
  local program
  for program in test_kernels test_sim; do
    if [[ -x $binaries/$program ]]; then
      attempt "$program.txt" "$binaries/$program" "[gpu]"
    else
      echo "gpu_check: no $program in $binaries, its tests are left out"
    fi
  done
  local edges=1,2,15,16,17,31,63,64,65,255,256,257,511,513,1000,2047,2049,4095,4097
  check edges --shape 32/8/128,8/8/64,28/4/128,16/1/256 --context "$edges"
  check layouts --shape 32/8/128,16/1/64 --context 777,8192 --layout hnd,nhd,paged:16,paged:64 \
    --dtype bf16,fp16
  check batches --context 1+300+17+5000,4096+1+4096,30000+100 --layout hnd,paged:16
  check equal_batches --context 513 --batch 2,6,33,64
  check groups --shape 8/8/128,16/8/128,64/8/128,128/8/128,24/8/96,40/8/80 --context 5000
  check peaky --context 32768 --query-sd 1,4,8
  check long --context 131072,1000000
}

stage_sanitizer() {
  local tool
  for tool in memcheck racecheck synccheck; do
    attempt "$tool.txt" compute-sanitizer --tool "$tool" --error-exitcode 3 \
      "$kvsim" measure --check --method "${methods[@]}" "${not_profiled[@]}" --shape 8/2/64,8/1/128 \
      --context 1,17,300,1+600+256 --layout hnd,paged:16
    attempt "${tool}_wide.txt" compute-sanitizer --tool "$tool" --error-exitcode 3 \
      "$kvsim" measure --check --method "${methods[@]}" "${not_profiled[@]}" --shape 16/1/256 --context 257 \
      --layout nhd --dtype fp16
  done
}

# One profiled process for each method and context; the first call of a process is the plain one.
stage_bytes() {
  local metrics=dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_op_read.sum
  local method context files=()
  for method in "${methods[@]}"; do
    for context in 8192 32768 131072; do
      local name=bytes_${method//[^a-z0-9-]/_}_$context
      local arguments=(measure --check --method "$method" --baseline "$method" --context "$context")
      local bounds=0  # launches before the plain call that only ask for bounds
      [[ $method != eta* ]] || bounds=1
      attempt "$name.json" "$kvsim" "${arguments[@]}" --json
      attempt "$name.log" ncu --clock-control none --cache-control all --csv --page raw \
        --metrics "$metrics" --kernel-name "regex:${KERNELS:-bernoulli|dense|eta|santa|topk}" \
        --launch-skip "$bounds" \
        --log-file "$output/$name.ncu.csv" "$kvsim" "${arguments[@]}"
      files+=("$output/$name")
    done
  done
  attempt bytes.txt python3 "$tools/ncu_bytes.py" "${files[@]}" -o "$output/bytes.csv"
  cat "$output/bytes.txt"
}

# bench NAME SHAPE CONTEXTS BATCH ARGUMENTS...: kvsim's processes and PyTorch's take turns.
bench() {
  local name=$1 shape=$2 contexts=$3 batch=$4
  shift 4
  local samples=$output/sdpa_$name.jsonl
  rm -f "$samples"
  attempt "bench_$name.txt" "$kvsim" measure --method "${methods[@]}" --shape "$shape" \
    --context "$contexts" --batch "$batch" --processes "$processes" \
    --between "python3 '$tools/bench_sdpa.py' --shape $shape --context $contexts --batch $batch \
      --append '$samples'" -o "$output/measured_$name.csv" --force "$@"
  cat "$output/bench_$name.txt"
  attempt "sdpa_$name.txt" python3 "$tools/bench_sdpa.py" --merge "$samples" \
    -o "$output/sdpa_$name.csv"
  cat "$output/sdpa_$name.txt"
}

# Dense attention, and ETA at the shares of blocks that the paper times.
union_methods() {
  [[ -n ${METHODS:-} ]] && return
  local density
  methods=(dense)
  for density in 0.16 0.355 0.512 1; do methods+=("eta:thresholds=union,density=$density"); done
}

stage_bench() {
  [[ -n ${METHODS:-} ]] || methods=(dense santa-sys santa-prop)
  case ${BENCH:-canon} in
    canon)
      bench canon 32/8/128 8192,32768,65536,131072 1
      bench peaky 32/8/128 32768 1 --query-sd 4,8
      bench batch6 32/8/128 30000 6
      ;;
    shapes)
      bench shapes 28/4/128,8/8/128,64/8/128,128/8/128,32/8/64 32768 1
      bench odd 32/8/128 32749,30011 1
      ;;
    layouts)
      bench layouts 32/8/128 32768 1 --layout nhd,paged:16,paged:64
      bench fp16 32/8/128 32768 1 --dtype fp16
      bench eta 32/4/64 65536 32
      ;;
    eta)
      union_methods
      bench eta_union 32/4/64 65536 64 --seconds 0.3
      ;;
    eta-sizes)
      union_methods
      bench eta_b32 32/4/64 65536 32 --seconds 0.3
      bench eta_b128 32/4/64 65536 128 --seconds 0.3
      bench eta_512k 32/4/64 524288 8 --seconds 0.3
      ;;
    santapp)
      local teams=santapp:grouping=contiguous,samples=124
      [[ -n ${METHODS:-} ]] || methods=(dense "$teams" "$teams,implementation=published")
      bench santapp 28/4/128 8192,32768,131072 1
      ;;
    *) die "BENCH=$BENCH: expected canon, shapes, layouts, eta, eta-sizes or santapp" ;;
  esac
}

case $stage in
  tests) stage_tests ;;
  sanitizer) stage_sanitizer ;;
  bytes) stage_bytes ;;
  bench) stage_bench ;;
  *) die "unknown stage '$stage', expected tests, sanitizer, bytes or bench" ;;
esac
exit $failed
