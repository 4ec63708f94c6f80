"""How a build folder compiles the project's files: shared by check_headers.py and check_tidy.py."""

from __future__ import annotations

import json
import os
import shlex
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Callable, Iterator, TypeVar

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["core", "traces", "kernels", "models", "sim", "plots"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def without_precompiled(words: list[str]) -> list[str]:
    """A command without precompiled headers: a file must say itself what it includes."""
    kept: list[str] = []
    i = 0
    while i < len(words):
        if words[i] == "-Xclang" and (
            words[i + 1] in ("-include-pch", "-include") or "cmake_pch" in words[i + 1]
        ):
            i += 2
        elif words[i] == "-include" and "cmake_pch" in words[i + 1]:
            i += 2
        else:
            kept += [] if words[i] in ("-Winvalid-pch", "-fpch-instantiate-templates") else [words[i]]
            i += 1
    return kept


def flags_of(build: Path) -> dict[Path, list[str]]:
    """The compiler and its flags, without input and output, of every source inside the project
    (generated ones excepted)."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.is_relative_to(build.resolve()):
            continue
        words = shlex.split(entry["command"])
        if "ccache" in Path(words[0]).name:
            words = words[1:]
        flags: list[str] = []
        skip = False
        for word in without_precompiled(words):
            if skip or word in ("-c", entry["file"]):
                skip = False
            elif word == "-o":
                skip = True
            else:
                flags.append(word)
        found[path] = flags
    return found


def in_parallel(work: Callable[[Item], Result], items: list[Item]) -> Iterator[tuple[Item, Result]]:
    """Pairs of item and result, as they are ready."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
