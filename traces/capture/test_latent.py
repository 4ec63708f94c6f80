"""Tests of latent attention with small random models (run by test_capture.py; needs torch)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import transformers

import capture
import hook
from latent import LatentAttention
from test_hook import PROMPT, build, load, run_capture, save_tokenizer
from trace_file import read_array

LACKING = [n for n in ("DeepseekV2Config", "DeepseekV3Config") if not hasattr(transformers, n)]
HEADS, RANK, NOPE, ROPE, VALUES = 4, 24, 12, 8, 10  # all different, so that none passes for another
SHAPE = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUES,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 2, "n_group": 1,
    "topk_group": 1, "pad_token_id": 0, "max_position_embeddings": 128,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip


def small_configs() -> dict[str, Any]:
    """Queries of full and of low rank; both ways of RoPE; a scale with YaRN's mscale in it."""
    return {
        "v2": transformers.DeepseekV2Config(**SHAPE, q_lora_rank=16),
        "v2-lite": transformers.DeepseekV2Config(**SHAPE, q_lora_rank=None),
        "v2-yarn": transformers.DeepseekV2Config(**SHAPE, q_lora_rank=None, rope_scaling=YARN),
        "v3-yarn": transformers.DeepseekV3Config(**SHAPE, q_lora_rank=16, rope_scaling=YARN),
        "v3-halves": transformers.DeepseekV3Config(**SHAPE, q_lora_rank=16, rope_interleave=False),
    }


def library_run(folder: str, tokens: np.ndarray) -> tuple[Any, list[Any], list[Any]]:
    """The model with the library's own attention; per layer its outputs [n, hidden] and latents."""
    model = load(folder, "eager")
    outputs: list[Any] = []
    latents: list[Any] = []
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.register_forward_hook(lambda _, __, out: outputs.append(out[0][0].double()))
        attention.kv_a_layernorm.register_forward_hook(lambda _, __, out: latents.append(out[0]))
    with torch.no_grad():
        model(torch.from_numpy(tokens).long()[None])
    return model, outputs, latents


def expanded(attention: Any, out: torch.Tensor) -> torch.Tensor:
    """What the module makes of outputs [q_heads, rank] over latent rows: W_uv, then o_proj."""
    weights = attention.kv_b_proj.weight.detach().double().view(HEADS, NOPE + VALUES, RANK)
    heads = torch.einsum("hvr,hr->hv", weights[:, NOPE:], out)
    return attention.o_proj.weight.detach().double() @ heads.flatten()


@unittest.skipIf(LACKING, f"transformers {transformers.__version__} lacks {', '.join(LACKING)}")
class LatentModels(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = Path(self.folder) / "t.h5"

    def captured(self, name: str, *more: str) -> str:
        """Captures 50 + 5 tokens of a small model; returns what went to standard error."""
        build(small_configs()[name], self.folder)
        save_tokenizer(self.folder)
        status, _, err = run_capture(self.folder, "--force", *more)
        self.assertEqual(status, 0, err)
        return err

    def test_the_trace_alone_gives_the_models_attention(self) -> None:
        for name in small_configs():
            with self.subTest(model=name):
                self.captured(name, "--dtype", "fp32")
                with h5py.File(self.path) as file:
                    model, outputs, latents = library_run(self.folder, file["tokens"][()])
                    for index, layer in enumerate(model.model.layers):
                        group = file[f"layers/{index}"]
                        self.check_shape(group)
                        self.assertEqual(group.attrs["scale"], layer.self_attn.scaling)
                        rows = group["kv"][0, :, :RANK]
                        np.testing.assert_allclose(rows, latents[index], rtol=1e-4, atol=1e-5)
                        self.check_outputs(group, layer.self_attn, outputs[index])

    def check_shape(self, group: h5py.Group) -> None:
        names = ("q_heads", "kv_heads", "head_dim", "v_head_dim", "layout")
        wanted = [HEADS, 1, RANK + ROPE, RANK, "latent"]
        self.assertEqual([group.attrs[name] for name in names], wanted)
        self.assertEqual(sorted(group), ["attention_sum", "kv", "probe", "q"])
        self.assertEqual(group["kv"].shape, (1, 55, RANK + ROPE))
        self.assertEqual(group["q"].shape, (5, HEADS, RANK + ROPE))

    def check_outputs(self, group: h5py.Group, attention: Any, outputs: torch.Tensor) -> None:
        """softmax(scale q.kv) over the first columns of kv, expanded, at each decode step."""
        kv = torch.from_numpy(group["kv"][0]).double()
        for step, query in enumerate(torch.from_numpy(group["q"][()]).double()):
            seen = kv[: 50 + step + 1]
            weights = torch.softmax(float(group.attrs["scale"]) * query @ seen.T, dim=-1)
            got = expanded(attention, weights @ seen[:, :RANK])
            wanted = outputs[50 + step]
            self.assertLess(float((got - wanted).norm() / wanted.norm()), 1e-5)

    def test_scale_is_the_models_own(self) -> None:
        plain = (NOPE + ROPE) ** -0.5
        mscale = 0.1 * YARN["mscale_all_dim"] * np.log(YARN["factor"]) + 1
        for name, scale in (("v2", plain), ("v3-halves", plain), ("v3-yarn", plain * mscale**2)):
            with self.subTest(model=name):
                err = self.captured(name)
                self.assertNotIn("mscale", err)
                with h5py.File(self.path) as file:
                    self.assertAlmostEqual(file["layers/0"].attrs["scale"], scale, places=12)
                    self.assertEqual(file.attrs["rotary_dim"], ROPE)

    def test_a_scale_without_mscale_is_told(self) -> None:
        err = self.captured("v2-yarn")
        with h5py.File(self.path) as file:
            bare = abs(file["layers/0"].attrs["scale"] - (NOPE + ROPE) ** -0.5) < 1e-9
        self.assertEqual("mscale_all_dim" in err, bare)  # newer versions of transformers apply it

    def test_every_type_verifies_with_outputs_over_latent_rows(self) -> None:
        for stored in ("bf16", "fp16", "fp32"):
            self.captured("v2", "--dtype", stored, "--outputs", "--layers", "1,2")
            with h5py.File(self.path) as file:
                self.assertEqual(file["layers/2/o"].shape, (5, HEADS, RANK))
                self.assertEqual(file["layers/2/probe_o"].shape, (4, HEADS, RANK))

    def test_expanded_keeps_the_heads(self) -> None:
        self.captured("v2", "--mla", "expanded")
        with h5py.File(self.path) as file:
            self.assertEqual(file["layers/0"].attrs["layout"], "heads")
            self.assertEqual(read_array(file["layers/0/k"]).shape, (HEADS, 55, NOPE + ROPE))
            self.assertEqual(file["layers/0/v"].shape, (HEADS, 55, VALUES))

    def test_other_ways_to_expand_are_refused(self) -> None:
        build(small_configs()["v2"], self.folder)
        recorder = hook.Recorder([0], len(PROMPT), "fp32", probe=0, sums=False)
        recorder.register()
        model = load(self.folder, hook.NAME)
        recorder.watch_latents(model)
        attention = model.model.layers[1].self_attn
        attention.kv_b_proj.register_forward_hook(lambda _, __, out: 1.01 * out)
        with self.assertRaisesRegex(hook.CaptureError, "layer 1: K of the heads is not kv_b_proj"):
            capture.run_model(model, PROMPT, 1, None)

    def test_tokens_without_a_latent_row_are_refused(self) -> None:
        build(small_configs()["v2"], self.folder)
        attention = LatentAttention(load(self.folder, "eager").model.layers[0].self_attn)
        query, value = torch.ones(1, HEADS, 2, NOPE + ROPE), torch.ones(1, HEADS, 2, VALUES)
        with self.assertRaisesRegex(hook.CaptureError, "got 0 latent rows, expected 2"):
            attention.absorb(query, query, value, torch.float32)

    @unittest.skipUnless(shutil.which("kvsim"), "no kvsim on PATH")
    def test_kvsim_reads_it(self) -> None:
        self.captured("v2", "--outputs")
        for verb in (["trace", "check"], ["replay", "--method", "dense"]):
            command = ["kvsim", *verb, str(self.path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
