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
        for word in words:
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
