#!/usr/bin/env bash
# Checks the layout of the C++ and CUDA sources; `check_format.sh --fix` puts it right. Only
# clang-format 14 is asked: other versions lay the same code out differently.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  echo "format: clang-format 14 is not installed, nothing is checked"
  exit 0
fi

mapfile -t files < <(find core traces kernels models sim plots tests bench -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
if [[ ${1-} == --fix ]]; then
  "$formatter" -i "${files[@]}"
  exit
fi
# Every file that is laid out differently, with the first line that is.
if "$formatter" --dry-run -Werror --ferror-limit=1 "${files[@]}"; then
  echo "format: ${#files[@]} files, all as clang-format 14 wants them"
else
  echo "format: not as clang-format 14 wants it, see above; put it right with tools/check_format.sh --fix"
  exit 1
fi
