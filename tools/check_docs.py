#!/usr/bin/env python3
"""Runs the commands that the documentation shows: check_docs.py [BUILD_FOLDER]

In README.md and docs/**/*.md, a fenced block marked `console` shows commands (lines that start with
`$ `, continued after a backslash) and, below each, what it prints. Every command runs, with the
built `kvsim` in the PATH, and must exit with 0; a line shown below it must occur in its output, in
order, where `...` stands for anything and runs of blanks count as one. A document's commands share a
scratch folder that looks like the repository's root, so a file that one writes is there for the next.

Not run: blocks marked `console norun` (needs a GPU, takes long), and commands that set up, build or
test, which CI runs by itself. Shell blocks with other marks must not contain kvsim commands, so
that none escapes the check.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN_BY_CI = ("./setup", ".ci/run", "git ", "cmake ", "ctest ", "cd ", "apt-get ", "sudo ", "su ", "pip ")
SECONDS = 120


@dataclass
class Command:
    line: int
    text: str
    shown: list[str] = field(default_factory=list)


@dataclass
class Document:
    commands: list[Command] = field(default_factory=list)
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


def parse(text: str) -> Document:
    document = Document()
    mark: str | None = None  # of the block we are in
    command: Command | None = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence:
            mark = fence.group(1).strip() if mark is None else None
            command = None
        elif mark is None:
            continue
        elif mark.split()[:1] == ["console"]:
            if command and command.text.endswith("\\"):
                command.text = command.text[:-1] + line.strip().removeprefix("> ")
            elif line.lstrip().startswith("$ "):
                command = Command(number, line.lstrip()[2:].strip())
                if "norun" in mark.split() or command.text.startswith(RUN_BY_CI):
                    document.left_out += 1
                else:
                    document.commands.append(command)
            elif command and line.strip():
                command.shown.append(line)
        elif mark in ("sh", "bash", "shell") and re.match(r"\s*(\$ )?kvsim ", line):
            document.problems.append(f"{number}: a kvsim command in a block marked '{mark}': mark it "
                                     "'console' and start the line with '$ ', so that it is run")
    return document


def missing_line(shown: list[str], output: str) -> str | None:
    """The first shown line that the output lacks at or after the place of the one before."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    start = 0
    for wanted in shown:
        parts = [re.escape(part) for part in re.split(r"\.\.\.|…", " ".join(wanted.split()))]
        pattern = re.compile(".*".join(parts))
        for index in range(start, len(lines)):
            if pattern.fullmatch(lines[index]):
                start = index + 1
                break
        else:
            if wanted.strip() not in ("...", "…"):
                return wanted
    return None


def run(command: Command, folder: Path, environment: dict[str, str]) -> str | None:
    """What is wrong, or None."""
    try:
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command.text], cwd=folder,
                              env=environment, stdin=subprocess.DEVNULL, text=True, timeout=SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return f"takes more than {SECONDS} s"
    if done.returncode:
        return f"exit {done.returncode}\n{done.stdout}"
    missing = missing_line(command.shown, done.stdout)
    return f"does not print\n{missing}\nbut\n{done.stdout}" if missing is not None else None


def main() -> int:
    build = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release").resolve()
    environment = os.environ | {"PATH": f"{build}:{os.environ['PATH']}"}
    files = sorted(ROOT.glob("README.md")) + sorted((ROOT / "docs").rglob("*.md"))
    count = left_out = failed = 0
    for path in files:
        name = path.relative_to(ROOT)
        document = parse(path.read_text())
        left_out += document.left_out
        for problem in document.problems:
            failed += 1
            print(f"{name}:{problem}")
        with tempfile.TemporaryDirectory() as scratch:
            for entry in ROOT.iterdir():
                if entry.name not in ("out", ".git"):
                    (Path(scratch) / entry.name).symlink_to(entry)
            for command in document.commands:
                count += 1
                problem = run(command, Path(scratch), environment)
                if problem:
                    failed += 1
                    print(f"{name}:{command.line}: $ {command.text}\n{problem}\n")
    print(f"docs: {len(files)} documents, {count} commands run, {left_out} not run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
