#!/usr/bin/env python3
"""Runs clang-tidy 14 on the program's sources: check_tidy.py BUILD_FOLDER [--seconds N]

Sources that changed last come first. When the time is up the rest is left out, and named. A source
that was clean before is not looked at again until it, a project header it includes, .clang-tidy or
its flags change: what was clean is remembered in ~/.cache/kvsim-tidy.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from compile_commands import FOLDERS, ROOT, flags_of, in_parallel

TIDY = "clang-tidy-14"  # other versions find other things
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim-tidy"
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def with_headers(source: Path) -> list[Path]:
    """The source and all project headers that it includes, directly or not."""
    found, todo = {source}, [source]
    while todo:
        for name in INCLUDE.findall(todo.pop().read_bytes()):
            header = ROOT / name.decode()
            if header.is_file() and header not in found:
                found.add(header)
                todo.append(header)
    return sorted(found)


def fingerprint(source: Path, flags: list[str]) -> str:
    digest = hashlib.sha256(" ".join(flags).replace(str(ROOT), "").encode())
    for path in [ROOT / ".clang-tidy", *with_headers(source)]:
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def changed_last(sources: list[Path]) -> list[Path]:
    """Uncommitted files first, then by the commit that touched them last."""
    def lines(*command: str) -> list[str]:
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *command], text=True, capture_output=True)
        except FileNotFoundError:
            return []
        return done.stdout.splitlines()

    order = [line[3:] for line in lines("status", "--porcelain", "-uall")]
    order += lines("log", "--format=", "--name-only")
    rank: dict[str, int] = {}
    for name in order:
        rank.setdefault(name, len(rank))
    return sorted(sources, key=lambda s: rank.get(str(s.relative_to(ROOT)), len(rank)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    if not shutil.which(TIDY):
        print(f"tidy: {TIDY} is not installed, nothing is checked")
        return 0
    commands = {source: flags for source, flags in flags_of(arguments.build).items()
                if source.relative_to(ROOT).parts[0] in FOLDERS and source.suffix == ".cpp"}
    sources = changed_last(sorted(commands))
    stop = time.monotonic() + arguments.seconds

    def tidy(source: Path) -> str | None:
        """Findings, empty if there are none; None if the source had to be left out."""
        mark = CACHE / fingerprint(source, commands[source])
        if mark.exists():
            return ""
        if time.monotonic() > stop:
            return None
        command = [TIDY, "-p", str(arguments.build), "--quiet", str(source)]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode == 0:
            CACHE.mkdir(parents=True, exist_ok=True)
            mark.touch()
            return ""
        return done.stdout or done.stderr

    failed, left_out, seen = 0, [], set()
    for source, output in in_parallel(tidy, sources):
        if output is None:
            left_out.append(str(source.relative_to(ROOT)))
        elif output:
            failed += 1
            # A finding in a header is told by every source that includes it: print it once.
            if output not in seen:
                print(output)
            seen.add(output)
    if left_out:
        print(f"tidy: time is up, NOT checked: {' '.join(sorted(left_out))}")
    print(f"tidy: {len(sources) - len(left_out)} of {len(sources)} sources checked, "
          f"{failed} with findings")
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
