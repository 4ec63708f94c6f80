"""The checks of tools/ find what they are there for: python3 tests/structure/test_tools.py"""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import check_docs  # noqa: E402
import check_includes  # noqa: E402
import check_presets  # noqa: E402


class Tree(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("core/error.h", "#pragma once\n")
        self.write("sim/replay.h", '#pragma once\n#include "core/error.h"\n')

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class Includes(Tree):
    def problems(self) -> str:
        return "\n".join(check_includes.check(self.root)[1])

    def test_a_sound_tree_has_no_problems(self) -> None:
        self.write("tests/core/test.cpp", '#include "sim/replay.h"\n#include <cuda_runtime.h>\n')
        self.assertEqual(self.problems(), "")

    def test_include_to_the_right(self) -> None:
        self.write("core/bad.cpp", '\n#include "sim/replay.h"\n')
        self.assertIn("core/bad.cpp:2: \"sim/replay.h\": sim is to the right of core", self.problems())

    def test_include_of_what_is_not_there_or_not_from_the_root(self) -> None:
        self.write("core/bad.cpp", '#include "error.h"\n')
        self.assertIn('"error.h" does not exist', self.problems())

    def test_include_in_brackets(self) -> None:
        self.write("sim/bad.cpp", "#include <core/error.h>\n")
        self.assertIn("include it in quotes", self.problems())

    def test_program_includes_tests(self) -> None:
        self.write("tests/catch.h", "#pragma once\n")
        self.write("sim/bad.cpp", '#include "tests/catch.h"\n')
        self.assertIn("sim may include core, traces, kernels, models, sim", self.problems())

    def test_cuda_outside_kernels(self) -> None:
        self.write("kernels/measure.cpp", "#include <cuda_runtime.h>\n")
        self.assertEqual(self.problems(), "")
        self.write("sim/bad.cpp", "#include <cuda_runtime.h>\n")
        self.assertIn("only kernels/ includes CUDA", self.problems())

    def test_no_pragma_once(self) -> None:
        self.write("core/bad.h", "int f();\n")
        self.assertIn("core/bad.h:1: no #pragma once", self.problems())

    def test_comparison_with_a_name(self) -> None:
        self.write("models/presets/gpus/h200_sxm.toml", "")
        self.write("kernels/quest/quest.cpp", 'KVSIM_REGISTER_METHOD("quest", info());\n')
        self.write("models/fine.cpp", '// if (gpu == "h200_sxm")\nstring gpu = "h200_sxm";\n')
        self.assertEqual(self.problems(), "")
        self.write("models/bad.cpp", 'if (gpu == "h200_sxm") {}\nif ("quest" != method) {}\n')
        self.assertIn('models/bad.cpp:1: compares with the name', self.problems())
        self.assertIn('models/bad.cpp:2: compares with the name', self.problems())

    def test_long_file(self) -> None:
        self.write("core/bad.cpp", "\n" * 501)
        self.assertIn("501 lines", self.problems())


class Presets(Tree):
    def check(self, text: str) -> tuple[int, str]:
        count, problems = check_presets.check_file(self.write("x.toml", text))
        return count, "\n".join(problems)

    def test_sound(self) -> None:
        text = '[sources]\na = "A"\n[m]\nr = { value = 1.5, unit = "s", kind = "spec", source = "a" }\n'
        self.assertEqual(self.check(text), (1, ""))

    def test_faults(self) -> None:
        self.assertIn("without unit", self.check("r = 1.5\n")[1])
        fault = self.check('r = { value = 3, low = 4, kind = "guess", source = "b" }\n')[1]
        for expected in ("no unit", "unknown kind 'guess'", "source 'b'", "not in order"):
            self.assertIn(expected, fault)
        self.assertIn("line 1", self.check("r = = 1\n")[1])


class Docs(unittest.TestCase):
    def test_parse(self) -> None:
        text = ("```console\n$ kvsim list \\\n    methods\ndense\n$ ./setup demo\n```\n"
                "```console norun\n$ kvsim measure\n```\n```bash\nkvsim list\n```\n")
        document = check_docs.parse(text)
        self.assertEqual([(c.line, c.text, c.shown) for c in document.commands],
                         [(2, "kvsim list methods", ["dense"])])
        self.assertEqual(document.left_out, 2)
        self.assertEqual(len(document.problems), 1)

    def test_shown_lines_are_looked_for_in_order(self) -> None:
        output = "method  time\ndense   12.5 us\ntopk    3 us\n"
        self.assertIsNone(check_docs.missing_line(["method time", "...", "topk ... us"], output))
        self.assertEqual(check_docs.missing_line(["topk 3 us", "dense 12.5 us"], output),
                         "dense 12.5 us")
        self.assertEqual(check_docs.missing_line(["dense 13 us"], output), "dense 13 us")

    def test_run(self) -> None:
        environment = {"PATH": "/usr/bin:/bin"}
        root = Path("/")
        self.assertIsNone(check_docs.run(check_docs.Command(1, "echo a", ["a"]), root, environment))
        for text, fault in (("exit 3", "exit 3"), ("false | cat", "exit 1"), ("echo b", "not print")):
            problem = check_docs.run(check_docs.Command(1, text, ["a"]), root, environment)
            self.assertIn(fault, problem or "")


if __name__ == "__main__":
    unittest.main()
