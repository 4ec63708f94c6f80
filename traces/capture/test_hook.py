"""Tests of the model hook with small random models (run by test_capture.py; needs torch)."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import capture
import hook
from trace_file import read_array

torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
PROMPT = [int(i) for i in np.random.default_rng(5).integers(0, 96, 40)]
SHAPE = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
    "max_position_embeddings": 128,
}  # fmt: skip


def small_configs() -> dict[str, Any]:
    """One model per rule: GQA; window and logit cap; window and sinks; heads without RoPE."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    return {
        "llama": transformers.LlamaConfig(**SHAPE),
        "gemma2": transformers.Gemma2Config(
            **SHAPE, sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=0.5
        ),
        "gpt-oss": transformers.GptOssConfig(**SHAPE, sliding_window=9, **experts),
        "gpt2": transformers.GPT2Config(
            vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128
        ),
    }


def build(config: Any, folder: str) -> None:
    """Saves a random model with weights large enough for uneven attention."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 or "sinks" in name:
                weight.normal_(0.0, 0.2)
    model.save_pretrained(folder)


def load(folder: str, attention: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention, dtype=torch.float32
    ).eval()


def save_tokenizer(folder: str) -> None:
    """One token per printable character."""
    vocab = {chr(32 + i): i for i in range(95)} | {"<unk>": 95}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(folder)


def run_capture(folder: str, *more: str) -> tuple[int, str, str]:
    """Status, standard output and error of capture.py on the model in folder: 50 + 5 tokens."""
    text = Path(folder) / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 3)
    out, err = io.StringIO(), io.StringIO()
    arguments = [
        "--model", folder, "--text", str(text), "--context", "50", "--steps", "5",
        "--probe", "4", "--verify", "-o", str(Path(folder) / "t.h5"), *more,
    ]  # fmt: skip
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = capture.main(arguments)
    return status, out.getvalue(), err.getvalue()


class WithModels(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_same_logits_as_the_library_and_same_sums(self) -> None:
        for name, config in small_configs().items():
            with self.subTest(model=name):
                build(config, self.folder)
                recorder = hook.Recorder([0, 1], len(PROMPT), "fp32", probe=3, sums=True)
                recorder.register()
                model = load(self.folder, hook.NAME)
                fed = capture.run_model(model, PROMPT, 4, None)
                reference = load(self.folder, "eager")
                ids = torch.tensor([PROMPT + fed])
                with torch.no_grad():
                    wanted = reference(ids, output_attentions=True)
                self.assertEqual(wanted.logits[0, len(PROMPT) - 1 : -1].argmax(-1).tolist(), fed)
                for layer in (0, 1):
                    self.check_layer(recorder.layer_trace(layer), wanted.attentions[layer][0])

    def check_layer(self, got: Any, weights: torch.Tensor) -> None:
        """Outputs, probes and sums against the library's own attention weights."""
        prompt = len(PROMPT)
        sums = weights[:, :prompt, :prompt].double().sum(dim=1)
        np.testing.assert_allclose(got.attention_sum, sums.numpy(), rtol=1e-4, atol=1e-5)
        group = got.q.shape[1] // got.k.shape[0]
        values = torch.from_numpy(got.v).repeat_interleave(group, dim=0)
        out = (weights @ values).transpose(0, 1).numpy()
        np.testing.assert_allclose(got.o, out[prompt:], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(got.probe_o, out[prompt - 3 : prompt], rtol=1e-3, atol=1e-5)

    def test_rules_are_taken_from_the_model(self) -> None:
        wanted = {"llama": (0.25, 0, 0.0), "gemma2": (20**-0.5, 9, 0.5), "gpt-oss": (0.25, 9, 0.0)}
        for name, rules in wanted.items():
            with self.subTest(model=name):
                build(small_configs()[name], self.folder)
                recorder = hook.Recorder([0], len(PROMPT), "bf16", probe=0, sums=False)
                recorder.register()
                capture.run_model(load(self.folder, hook.NAME), PROMPT, 1, None)
                layer = recorder.layer_trace(0)
                self.assertEqual((layer.scale, layer.window, layer.logit_cap), rules)
                self.assertEqual(layer.sink_logits is not None, name == "gpt-oss")

    def test_other_masks_are_refused(self) -> None:
        distance = torch.arange(12)[:, None] - torch.arange(12)[None, :]
        causal = distance >= 0
        hook.check_mask(causal[None, None], 12, 12, 0)
        hook.check_mask((causal & (distance < 4))[None, None], 12, 12, 4)
        chunked = causal & (torch.arange(12)[:, None] // 4 == torch.arange(12)[None, :] // 4)
        for mask in (chunked, torch.ones_like(causal), causal & (distance < 4)):
            with self.assertRaisesRegex(hook.CaptureError, "mask"):
                hook.check_mask(mask[None, None], 12, 12, 0)

    def test_unknown_arguments_are_refused(self) -> None:
        module = torch.nn.Module()
        with self.assertRaisesRegex(hook.CaptureError, "position_bias"):
            hook.read_rules(module, 16, {"scaling": 1.0, "position_bias": torch.zeros(1)})
        self.assertEqual(hook.read_rules(module, 16, {"position_ids": 1}).scale, 0.25)

    def test_blocks_do_not_change_the_result(self) -> None:
        generator = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(n, 40, 16, generator=generator) for n in (4, 2, 2))
        rules = hook.Rules(0.25, window=7)
        whole, _ = hook.attend(q, k, v, 0, rules)
        recorder = hook.Recorder([], 40, "fp32", probe=0, sums=False)
        old, hook._BLOCK_QUERIES = hook._BLOCK_QUERIES, 6
        self.addCleanup(setattr, hook, "_BLOCK_QUERIES", old)
        torch.testing.assert_close(recorder._prefill(q, k, v, rules, None), whole)

    def test_program_from_end_to_end(self) -> None:
        build(small_configs()["llama"], self.folder)
        save_tokenizer(self.folder)
        for stored in ("bf16", "fp16", "fp32"):
            status, out, err = run_capture(self.folder, "--dtype", stored, "--force", "--outputs")
            self.assertEqual(status, 0, err)
            self.assertIn("ok", out)
        with h5py.File(Path(self.folder) / "t.h5") as file:
            self.assertEqual(file["layers/1/v"].shape, (2, 55, 16))
            self.assertEqual(file["layers/1/probe_o"].shape, (4, 4, 16))
            self.assertEqual(file.attrs["rope_theta"], 10000.0)
            self.assertEqual(file["tokens"][0], ord("t") - 32)
            tokens, keys = file["tokens"][()], read_array(file["layers/1/k"])
        forced = Path(self.folder) / "old.h5"
        (Path(self.folder) / "t.h5").rename(forced)
        status, _, err = run_capture(self.folder, "--dtype", "fp32", "--force-tokens", str(forced))
        self.assertEqual(status, 0, err)
        with h5py.File(Path(self.folder) / "t.h5") as file:
            self.assertNotIn("o", file["layers/1"])
            np.testing.assert_array_equal(file["tokens"][()], tokens)
            np.testing.assert_allclose(read_array(file["layers/1/k"]), keys, rtol=1e-5, atol=1e-6)

    def test_errors_exit_1_and_write_nothing(self) -> None:
        build(small_configs()["llama"], self.folder)
        save_tokenizer(self.folder)
        for more, message in (
            (("--layers", "2"), "layers 0 to 1"),
            (("--context", "5000"), "--context is 5000"),
            (("--bos",), "no BOS"),
            (("--force-tokens", str(Path(self.folder) / "text.txt")), "invalid literal"),
        ):
            status, _, err = run_capture(self.folder, *more)
            self.assertEqual(status, 1)
            self.assertIn(message, err)
            self.assertFalse((Path(self.folder) / "t.h5").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
