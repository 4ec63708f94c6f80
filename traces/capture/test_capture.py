"""Tests of the capture program: python3 test_capture.py

The file format, the verification and the shipped sample need numpy and h5py only. The tests of the
model hook need torch and transformers and are skipped, saying so, where these are missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path

import h5py
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import capture  # noqa: E402
import verify  # noqa: E402
from trace_file import (  # noqa: E402
    LayerTrace,
    Trace,
    TraceError,
    from_bf16_bits,
    is_bf16,
    open_trace,
    read_array,
    read_attribute,
    read_keys_values,
    to_bf16_bits,
    write_trace,
)

SAMPLE = HERE.parent / "samples" / "smollm2-135m-2k.h5"
MISSING = [m for m in ("torch", "transformers", "tokenizers") if not importlib.util.find_spec(m)]


def rounded(values: np.ndarray, stored: str) -> np.ndarray:
    if stored == "bf16":
        return from_bf16_bits(to_bf16_bits(values))
    return values.astype({"fp16": np.float16, "fp32": np.float32}[stored]).astype(np.float32)


def naive_output(layer: LayerTrace, query: np.ndarray, count: int) -> np.ndarray:
    """Dense attention of one query, written out element by element: an oracle for verify.py."""
    group = query.shape[0] // layer.k.shape[0]
    out = np.zeros((query.shape[0], layer.v.shape[2]))
    for head in range(query.shape[0]):
        first = max(0, count - layer.window) if layer.window else 0
        keys, values = layer.k[head // group], layer.v[head // group]
        scores = [float(np.dot(query[head], keys[t]) * layer.scale) for t in range(first, count)]
        if layer.logit_cap:
            scores = [layer.logit_cap * np.tanh(s / layer.logit_cap) for s in scores]
        total = 0.0 if layer.sink_logits is None else np.exp(float(layer.sink_logits[head]))
        total += sum(np.exp(scores))
        for t, score in zip(range(first, count), scores, strict=True):
            out[head] += np.exp(score) / total * values[t]
    return out


def make_trace(
    stored: str, window: int = 0, cap: float = 0.0, sinks: bool = False, latent: bool = False
) -> Trace:
    """A small random trace with its exact outputs: 21 prompt tokens, 3 steps, 2 probe queries."""
    rng = np.random.default_rng(7)
    prompt, steps, heads, kv_heads, width, v_width = 21, 3, 6, 1 if latent else 2, 16, 8

    def draw(*shape: int) -> np.ndarray:
        return rounded(rng.standard_normal(shape).astype(np.float32), stored)

    layer = LayerTrace(
        k=draw(kv_heads, prompt + steps, width),
        v=draw(kv_heads, prompt + steps, v_width),
        q=draw(steps, heads, width),
        probe=draw(2, heads, width),
        scale=0.3,
        window=window,
        logit_cap=cap,
        latent=latent,
        sink_logits=rng.standard_normal(heads).astype(np.float32) if sinks else None,
    )
    if latent:
        layer.v = layer.k[..., :v_width]
    layer.o = np.stack([naive_output(layer, layer.q[s], prompt + s + 1) for s in range(steps)])
    layer.probe_o = np.stack([naive_output(layer, layer.probe[i], prompt - 1 + i) for i in (0, 1)])
    trace = Trace(
        model="random", source="test", license="none", prompt_tokens=prompt, decode_steps=steps,
        rope="none", rope_theta=0.0, rope_scaling="none", rotary_dim=0, synthetic=True,
        tokens=np.arange(prompt + steps, dtype=np.int32), layers={3: layer},
    )  # fmt: skip
    return trace


class Rounding(unittest.TestCase):
    def test_ties_go_to_even_and_overflow_to_infinity(self) -> None:
        cases = {
            0x3F800000: 0x3F80, 0x3F808000: 0x3F80, 0x3F818000: 0x3F82, 0x3F808001: 0x3F81,
            0x7F7FFFFF: 0x7F80, 0x7F800000: 0x7F80, 0x80000000: 0x8000, 0x00008000: 0x0000,
            0x00018000: 0x0002, 0xBF808001: 0xBF81,
        }  # fmt: skip
        values = np.array(list(cases), dtype=np.uint32).view(np.float32)
        self.assertEqual(to_bf16_bits(values).tolist(), list(cases.values()))

    def test_nan_stays_nan(self) -> None:
        values = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], dtype=np.uint32).view(np.float32)
        self.assertTrue(np.isnan(from_bf16_bits(to_bf16_bits(values))).all())

    def test_every_finite_bf16_value_is_a_fixed_point(self) -> None:
        bits = np.arange(1 << 16, dtype=np.uint16)
        bits = bits[np.isfinite(from_bf16_bits(bits))]
        np.testing.assert_array_equal(to_bf16_bits(from_bf16_bits(bits)), bits)


class FileFormat(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.h5"

    def test_round_trip_of_every_type(self) -> None:
        for stored in ("bf16", "fp16", "fp32"):
            for compress in (False, True):
                with self.subTest(stored=stored, compress=compress):
                    trace = make_trace(stored)
                    write_trace(self.path, trace, stored, compress, force=True)
                    with open_trace(self.path) as file:
                        group = file["layers/3"]
                        self.assertEqual(is_bf16(group["k"].id.get_type()), stored == "bf16")
                        for name in ("k", "v", "q", "probe"):
                            wanted = getattr(trace.layers[3], name)
                            np.testing.assert_array_equal(read_array(group[name]), wanted)
                            np.testing.assert_array_equal(group[name][()], wanted)  # plain h5py
                        np.testing.assert_array_equal(file["tokens"][()], trace.tokens)

    def test_large_dataset_is_chunked_and_equal(self) -> None:
        trace = make_trace("bf16")
        layer = trace.layers[3]
        trace.prompt_tokens, trace.tokens = 2500, None
        rng = np.random.default_rng(1)
        for name, width in (("k", 16), ("v", 8)):
            values = rng.standard_normal((2, 2503, width)).astype(np.float32)
            setattr(layer, name, rounded(values, "bf16"))
        write_trace(self.path, trace, "bf16", compress=True)
        with open_trace(self.path) as file:
            self.assertEqual(file["layers/3/k"].chunks, (1, 835, 16))
            np.testing.assert_array_equal(read_array(file["layers/3/k"]), layer.k)

    def test_latent_rows_are_one_dataset(self) -> None:
        trace = make_trace("bf16", latent=True)
        write_trace(self.path, trace)
        with open_trace(self.path) as file:
            group = file["layers/3"]
            self.assertEqual(sorted(group), ["kv", "o", "probe", "probe_o", "q"])
            names = ("layout", "kv_heads", "head_dim", "v_head_dim")
            self.assertEqual([group.attrs[name] for name in names], ["latent", 1, 16, 8])
            k, v = read_keys_values(file, group)
            np.testing.assert_array_equal(k, trace.layers[3].k)
            np.testing.assert_array_equal(v, trace.layers[3].k[..., :8])

    def test_latent_rows_that_are_none_are_refused(self) -> None:
        trace = make_trace("bf16", latent=True)
        trace.layers[3].v = trace.layers[3].v + 1
        with self.assertRaisesRegex(TraceError, "/layers/3/kv: V is not its first 8 columns"):
            write_trace(self.path, trace)
        trace = make_trace("bf16")
        trace.layers[3].latent = True
        with self.assertRaisesRegex(TraceError, "/layers/3/kv: 2 KV heads, expected 1"):
            write_trace(self.path, trace)

    def test_attributes(self) -> None:
        trace = make_trace("bf16", window=5, cap=2.0)
        trace.layers[3].overrides = {"rope": "applied"}
        write_trace(self.path, trace)
        with h5py.File(self.path) as file:
            layer = file["layers/3"]
            self.assertEqual((file.attrs["format"], file.attrs["version"]), ("kvsim-trace", 1))
            self.assertEqual(file.attrs["version"].dtype, np.int64)
            self.assertEqual(file.attrs["rope_theta"].dtype, np.float64)
            self.assertEqual(file.attrs["synthetic"], 1)
            sizes = [layer.attrs[n] for n in ("q_heads", "kv_heads", "head_dim", "v_head_dim")]
            self.assertEqual(sizes, [6, 2, 16, 8])
            self.assertEqual((layer.attrs["window"], layer.attrs["logit_cap"]), (5, 2.0))
            self.assertEqual(layer.attrs["layout"], "heads")
            self.assertEqual(read_attribute(file, layer, "rope"), "applied")
            self.assertEqual(read_attribute(file, layer, "model"), "random")  # the root's

    def test_same_content_gives_same_bytes(self) -> None:
        other = self.path.with_name("other.h5")
        for path in (self.path, other):
            write_trace(path, make_trace("bf16"), compress=True)
        self.assertEqual(self.path.read_bytes(), other.read_bytes())

    def test_does_not_overwrite_and_leaves_nothing_behind(self) -> None:
        write_trace(self.path, make_trace("bf16"))
        before = self.path.read_bytes()
        with self.assertRaisesRegex(TraceError, "exists"):
            write_trace(self.path, make_trace("fp32"), "fp32")
        broken = make_trace("bf16")
        broken.layers[3].v[0, 0, 0] = np.nan
        with self.assertRaisesRegex(TraceError, "not finite"):
            write_trace(self.path, broken, force=True)
        self.assertEqual(self.path.read_bytes(), before)
        self.assertEqual(list(self.path.parent.iterdir()), [self.path])

    def test_refuses_wrong_shapes_and_foreign_files(self) -> None:
        wrong = make_trace("bf16")
        wrong.layers[3].k = wrong.layers[3].k[:, :-1]
        with self.assertRaisesRegex(TraceError, "/layers/3/k"):
            write_trace(self.path, wrong)
        with h5py.File(self.path, "w"):
            pass
        with self.assertRaisesRegex(TraceError, "kvsim-trace"):
            open_trace(self.path)


class Verification(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.h5"

    def test_exact_outputs_pass_under_every_rule(self) -> None:
        for rules in (
            {}, {"window": 5}, {"cap": 1.5}, {"sinks": True}, {"window": 100}, {"latent": True},
        ):  # fmt: skip
            with self.subTest(**rules):
                write_trace(self.path, make_trace("bf16", **rules), force=True)
                reports = verify.verify(self.path)
                self.assertEqual([r.kind for r in reports], ["steps", "probe"])
                self.assertLess(max(r.errors.max() for r in reports), 1e-6)

    def test_a_small_change_is_seen(self) -> None:
        trace = make_trace("bf16")
        trace.layers[3].k[1, 4] += 0.25
        write_trace(self.path, trace)
        worst = max(r.errors.max() for r in verify.verify(self.path))
        self.assertGreater(worst, verify.DEFAULT_TOLERANCE)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertFalse(verify.print_verdict(self.path, verify.verify(self.path), 1e-4))

    def test_wrong_attention_sum_is_refused(self) -> None:
        trace = make_trace("bf16")
        trace.layers[3].attention_sum = np.full((6, 21), 0.9, dtype=np.float32)
        write_trace(self.path, trace)
        with self.assertRaisesRegex(TraceError, "attention_sum"):
            verify.verify(self.path)

    def test_without_outputs_there_is_nothing_to_compare(self) -> None:
        trace = make_trace("bf16")
        trace.layers[3].o = None
        write_trace(self.path, trace)
        with self.assertRaisesRegex(TraceError, "--outputs"):
            verify.verify(self.path)


class Sample(unittest.TestCase):
    def test_stored_outputs_equal_dense_attention(self) -> None:
        reports = verify.verify(SAMPLE)
        self.assertEqual([r.layer for r in reports[::2]], [0, 7, 14, 22, 29])
        self.assertLess(max(r.errors.max() for r in reports), 2e-5)

    def test_size_and_contents(self) -> None:
        self.assertLessEqual(SAMPLE.stat().st_size, 8_000_000)
        digest = hashlib.sha256(SAMPLE.read_bytes()).hexdigest()
        self.assertIn(digest, (SAMPLE.parent / "README.md").read_text(encoding="utf-8"))
        with open_trace(SAMPLE) as file:
            self.assertEqual(file["tokens"].shape, (2048 + 16,))
            self.assertEqual(file["layers/7/k"].shape, (3, 2064, 64))
            self.assertEqual(file["layers/7/q"].shape, (16, 9, 64))
            self.assertEqual(file["layers/7/probe"].shape, (16, 9, 64))
            self.assertTrue(is_bf16(file["layers/7/k"].id.get_type()))


class Arguments(unittest.TestCase):
    def test_layers(self) -> None:
        self.assertEqual(capture.parse_layers("14,0,7-9,8"), [0, 7, 8, 9, 14])
        self.assertIsNone(capture.parse_layers("all"))

    def test_bad_arguments_exit_2(self) -> None:
        good = ["--model", "m", "--text", "t", "--context", "8", "-o", "x.h5"]
        for bad in (
            good[2:], good[:-2], [*good, "--layers", "3-1"], [*good, "--layers", "a"],
            [*good, "--steps", "0"], [*good, "--dtype", "fp8"], [*good, "--probe", "9"],
        ):  # fmt: skip
            with self.subTest(bad=bad), contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaises(SystemExit) as caught:
                    capture.main(bad)
                self.assertEqual(caught.exception.code, 2)


if not MISSING:
    import test_hook  # noqa: E402
    import test_latent  # noqa: E402

    WithModels = test_hook.WithModels
    LatentModels = test_latent.LatentModels
else:

    @unittest.skip(f"not installed: {', '.join(MISSING)} (see requirements.txt)")
    class WithModels(unittest.TestCase):
        def test_capture_of_small_models(self) -> None:
            """Stands for test_hook.py and test_latent.py."""


if __name__ == "__main__":
    unittest.main(verbosity=2)
