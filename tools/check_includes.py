#!/usr/bin/env python3
"""Checks the shape of the source tree: check_includes.py [ROOT]

- A folder includes only itself and folders to its left: core, traces, kernels, models, sim, plots.
- Project headers are included in quotes, by their path from the root, and exist; CUDA headers are
  included below kernels/ only. Every header has `#pragma once`.
- No code compares a name with that of a method or preset: what differs between them belongs to the
  method's own file or to the preset.
- No file is longer than 500 lines.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ORDER = ["core", "traces", "kernels", "models", "sim", "plots"]
FREE = ["bench", "tests"]  # include whatever they measure or test
MAX_LINES = 500

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda|cub/|cooperative_groups|mma\.h|thrust/)")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
REGISTERED = re.compile(r'KVSIM_REGISTER_METHOD\(\s*"([^"]+)"')


def sources(root: Path) -> list[Path]:
    suffixes = {".h", ".cpp", ".cu", ".cuh"}
    found = [p for folder in ORDER + FREE for p in (root / folder).rglob("*")]
    return sorted(p for p in found if p.suffix in suffixes)


def without_comments(text: str) -> str:
    """The text with comments blanked; strings and line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return COMMENT.sub(blank, text)


def registered_names(root: Path) -> set[str]:
    """Methods (their registrations and their pages) and presets (their files)."""
    names = {p.stem for p in (root / "models/presets").rglob("*.toml")}
    names |= {p.stem for p in (root / "docs/methods").glob("*.md")} - {"README"}
    for path in (root / "kernels").rglob("*"):
        if path.suffix in {".cpp", ".cu"}:
            names |= set(REGISTERED.findall(path.read_text()))
    return names


def name_comparison(names: set[str]) -> re.Pattern[str]:
    literal = '"(?:' + "|".join(re.escape(n) for n in sorted(names)) + ')"(?:sv|s)?'
    return re.compile(
        rf"[=!]=\s*{literal}|{literal}\s*[=!]=|\b(?:compare|starts_with|ends_with)\(\s*{literal}"
    )


def check_include(root: Path, path: Path, quote: str, target: str) -> str | None:
    folder = path.relative_to(root).parts[0]
    first = target.split("/")[0]
    if quote == "<":
        if first in ORDER + FREE and (root / target).exists():
            return f"<{target}> is a header of this project: include it in quotes"
        if CUDA_HEADER.match(target) and folder in ORDER and folder != "kernels":
            return f"<{target}>: only kernels/ includes CUDA headers"
        return None
    if not (root / target).is_file():
        return f'"{target}" does not exist (includes are paths from the root)'
    if folder in FREE:
        return None
    if first not in ORDER:
        return f'"{target}": {folder} may include {", ".join(ORDER[: ORDER.index(folder) + 1])}'
    if ORDER.index(first) > ORDER.index(folder):
        return f'"{target}": {first} is to the right of {folder} in {" -> ".join(ORDER)}'
    return None


def check(root: Path) -> tuple[int, list[str]]:
    files = sources(root)
    names = registered_names(root)
    comparison = name_comparison(names) if names else None
    problems = []
    for path in files:
        where = path.relative_to(root)
        text = path.read_text()
        code = without_comments(text)

        def line(position: int) -> int:
            return code.count("\n", 0, position) + 1

        for match in INCLUDE.finditer(code):
            problem = check_include(root, path, *match.groups())
            if problem:
                problems.append(f"{where}:{line(match.start(1))}: {problem}")
        if path.suffix in {".h", ".cuh"} and not re.search(r"^#pragma once$", text, re.MULTILINE):
            problems.append(f"{where}:1: no #pragma once")
        if comparison and where.parts[0] in ORDER:
            for match in comparison.finditer(code):
                problems.append(f"{where}:{line(match.start())}: compares with the name of a method "
                                f"or preset: {match.group(0)}")
        if (length := text.count("\n")) > MAX_LINES:
            problems.append(f"{where}:{MAX_LINES}: {length} lines, at most {MAX_LINES} are wanted")
    return len(files), problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    count, problems = check(root)
    for problem in problems:
        print(problem)
    print(f"structure: {count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
