#!/usr/bin/env python3
"""Checks the presets without the program's own reader: check_presets.py

Each file is TOML; each constant has value, unit, kind and source; the kind is one of the known
words, and the source is a key of the file's [sources] (or of those it inherits). A bare decimal
number is a constant that forgot where it comes from.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"spec", "published", "measured", "calibrated", "derived", "assumed"}


def is_constant(node: Any) -> bool:
    """A value or a curve, not a table that happens to have a key `value`."""
    return isinstance(node, dict) and (isinstance(node.get("value"), (int, float))
                                       or isinstance(node.get("x"), list))


def constant_problems(constant: dict[str, Any], sources: dict[str, str]) -> list[str]:
    problems = [f"no {key}" for key in ("unit", "kind", "source") if key not in constant]
    if constant.get("kind", "spec") not in KINDS:
        problems.append(f"unknown kind '{constant['kind']}'")
    source = constant.get("source")
    if source is not None and source not in sources:
        problems.append(f"source '{source}' is not in [sources]")
    if "value" in constant:
        value = constant["value"]
        if not constant.get("low", value) <= value <= constant.get("high", value):
            problems.append("low, value and high are not in order")
    return problems


def check_file(path: Path) -> tuple[int, list[str]]:
    """How many constants there are, and what is wrong."""
    try:
        root = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        return 0, [str(error)]
    sources = dict(root.get("sources", {}))
    if "inherits" in root:
        sources |= tomllib.loads((path.parent / f"{root['inherits']}.toml").read_text())["sources"]
    count, problems = 0, []

    def visit(key: str, node: Any) -> None:
        nonlocal count
        if isinstance(node, float):
            problems.append(f"{key}: a number without unit, kind and source")
        elif is_constant(node):
            count += 1
            problems.extend(f"{key}: {problem}" for problem in constant_problems(node, sources))
        elif isinstance(node, dict):
            for name, child in node.items():
                visit(f"{key}.{name}" if key else name, child)

    visit("", {name: node for name, node in root.items() if name != "sources"})
    return count, problems


def main() -> int:
    files = sorted((ROOT / "models/presets").rglob("*.toml"))
    constants = failures = 0
    for path in files:
        count, problems = check_file(path)
        constants += count
        failures += len(problems)
        for problem in problems:
            print(f"{path.relative_to(ROOT)}: {problem}")
    print(f"presets: {len(files)} files, {constants} constants, {failures} problems")
    return 1 if failures or not files else 0


if __name__ == "__main__":
    sys.exit(main())
