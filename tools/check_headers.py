#!/usr/bin/env python3
"""Compiles every header alone, twice included: check_headers.py BUILD_FOLDER

A header gets the flags of its own folder's sources, or of the nearest folder's above it that has
some, so it also has to do without the libraries that only folders to its right link.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from compile_commands import FOLDERS, ROOT, flags_of, in_parallel


def main() -> int:
    commands = flags_of(Path(sys.argv[1]))
    # The .cu among them are compiled for the emulator's tests, not as their folder's.
    sources = sorted((p for p in commands if p.suffix == ".cpp"), key=lambda p: (len(p.parts), p))
    folder_flags: dict[Path, list[str]] = {}
    for source in sources:
        for folder in source.relative_to(ROOT).parents:
            folder_flags.setdefault(folder, commands[source])
    headers = sorted(h for folder in FOLDERS + ["tests"] for h in (ROOT / folder).rglob("*.h"))

    def compile_alone(header: Path) -> str:
        name = header.relative_to(ROOT)
        flags = next(folder_flags[folder] for folder in name.parents if folder in folder_flags)
        source = f'#include "{name}"\n' * 2
        command = [*flags, "-x", "c++", "-fsyntax-only", "-Wno-unused-function", "-"]
        done = subprocess.run(command, input=source, text=True, capture_output=True, cwd=ROOT)
        return done.stderr or f"exit {done.returncode}\n" if done.returncode else ""

    failed = 0
    for header, output in in_parallel(compile_alone, headers):
        if output:
            failed += 1
            print(f"{header.relative_to(ROOT)} does not compile alone:\n{output}")
    print(f"headers: {len(headers)} compiled alone, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
