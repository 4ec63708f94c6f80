"""The attention function that a transformers model runs while it is captured.

It computes causal softmax attention in float32 (GQA, sliding window, logit cap, sinks) and keeps
what a trace needs. Q, K and V are rounded to the stored type *before* attention, in every layer, so
the file holds exactly what the model attended to. Latent attention (MLA) runs over its latent rows
(latent.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from errors import CaptureError
from latent import LatentAttention, is_latent
from trace_file import LayerTrace

NAME = "kvsim_capture"  # of the attention implementation, as transformers knows it
TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_BLOCK_SCORES = 1 << 26  # scores held at once in prefill: 256 MiB in float32
_BLOCK_QUERIES = 256

# Arguments of attention functions that do not change what is computed here (the mask is checked).
_IGNORED = {
    "position_ids", "cache_position", "position_embeddings", "past_key_values", "is_causal",
    "use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits",
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """How one layer weighs its keys."""

    scale: float
    window: int = 0
    logit_cap: float = 0.0
    sink_logits: Tensor | None = None


@dataclass
class _Record:
    """What one layer has seen so far; tensors are float32 with values of the stored type."""

    rules: Rules
    latent: bool = False  # v is the first columns of k, the one row of all heads
    k: Tensor | None = None
    v: Tensor | None = None
    q: list[Tensor] = field(default_factory=list)
    o: list[Tensor] = field(default_factory=list)
    probe: Tensor | None = None
    probe_o: Tensor | None = None
    attention_sum: Tensor | None = None


def checked_rows(queries: int) -> list[int]:
    """The queries whose mask is compared with ours: first, middle and last."""
    return sorted({0, queries // 2, queries - 1})


def allowed_keys(positions: Tensor, keys: int, window: int) -> Tensor:
    """[queries, keys]: a query sees itself and earlier keys; a window of W includes itself."""
    distance = positions[:, None] - torch.arange(keys, device=positions.device)[None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0


def attend(q: Tensor, k: Tensor, v: Tensor, first: int, rules: Rules) -> tuple[Tensor, Tensor]:
    """Output [q_heads, n, v_d] and weights [q_heads, n, keys] of the n queries from position first.

    q is [q_heads, n, d], k [kv_heads, keys, d], v [kv_heads, keys, v_d].
    """
    q_heads, count, width = q.shape
    kv_heads, keys, _ = k.shape
    logits = q.reshape(kv_heads, -1, width) @ k.transpose(1, 2) * rules.scale
    logits = logits.reshape(q_heads, count, keys)
    if rules.logit_cap:
        logits = rules.logit_cap * torch.tanh(logits / rules.logit_cap)
    positions = torch.arange(first, first + count, device=q.device)
    logits.masked_fill_(~allowed_keys(positions, keys, rules.window), float("-inf"))
    if rules.sink_logits is not None:
        sinks = rules.sink_logits[:, None, None].expand(-1, count, 1)
        weights = torch.softmax(torch.cat([logits, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(logits, dim=-1)
    out = weights.reshape(kv_heads, -1, keys) @ v
    return out.reshape(q_heads, count, v.shape[2]), weights


def read_rules(module: nn.Module, head_dim: int, arguments: dict[str, Any]) -> Rules:
    """Takes what is supported out of the arguments of an attention call; refuses the rest."""
    arguments = {k: v for k, v in arguments.items() if k not in _IGNORED and v is not None}
    scale = arguments.pop("scaling", getattr(module, "scaling", None))
    window = arguments.pop("sliding_window", 0)
    cap = arguments.pop("softcap", 0.0)
    sinks = arguments.pop("s_aux", None)
    if arguments.pop("dropout", 0.0):
        raise CaptureError("attention dropout is on; the model is not in evaluation mode")
    if arguments:
        raise CaptureError(f"attention arguments not supported: {', '.join(sorted(arguments))}")
    if not getattr(module, "is_causal", True):
        raise CaptureError("attention is not causal")
    if getattr(module, "scale_attn_by_inverse_layer_idx", False):
        raise CaptureError("scale_attn_by_inverse_layer_idx is not supported")
    if scale is None:
        scale = head_dim**-0.5
    return Rules(float(scale), int(window), float(cap), None if sinks is None else sinks.float())


class Recorder:
    """One capture: prefill of prompt_tokens in one piece, then decode steps of one token.

    Life cycle: register, load the model with attn_implementation=NAME, watch_latents if latent rows
    shall be kept where the model has them, run it, then layer_trace.
    """

    def __init__(
        self, layers: Sequence[int], prompt_tokens: int, stored: str, probe: int, sums: bool
    ) -> None:
        self.layers = frozenset(layers)
        self.prompt_tokens = prompt_tokens
        self.stored = TORCH_TYPES[stored]
        self.probe = probe
        self.sums = sums
        self.modules: dict[int, nn.Module] = {}
        self._records: dict[int, _Record] = {}
        self._latents: dict[nn.Module, LatentAttention] = {}

    def register(self) -> None:
        AttentionInterface.register(NAME, self.attention)
        AttentionMaskInterface.register(NAME, self.mask)

    def watch_latents(self, model: nn.Module) -> None:
        """From now on the latent attention of this model runs over its latent rows."""
        self._latents = {m: LatentAttention(m) for m in model.modules() if is_latent(m)}

    def mask(self, batch_size: int, cache_position: Tensor, **arguments: Any) -> Tensor:
        """The model's mask, but only of checked_rows: it is compared, never used."""
        rows = cache_position[checked_rows(len(cache_position))]
        arguments["allow_is_causal_skip"] = False
        return sdpa_mask(batch_size=batch_size, cache_position=rows, **arguments)

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **arguments: Any,
    ) -> tuple[Tensor, None]:
        """Called by the model: query [1, q_heads, n, d] after RoPE, key and value with the past."""
        layer = getattr(module, "layer_idx", None)
        if layer is None:
            raise CaptureError(f"{type(module).__name__} has no layer_idx")
        try:
            rules = read_rules(module, query.shape[3], arguments)
            self._check_shapes(query, key)
            check_mask(attention_mask, query.shape[2], key.shape[2], rules.window)
            latent = self._latents.get(module)
            q, k, v = self._rounded(latent, query, key, value)
        except CaptureError as error:
            raise CaptureError(f"layer {layer}: {error}") from None
        record = None
        if layer in self.layers:
            self.modules[layer] = module
            record = self._records.setdefault(layer, _Record(rules, latent is not None))
        run = self._prefill if key.shape[2] <= self.prompt_tokens else self._decode
        out = run(q, k, v, rules, record)
        if latent is not None:
            out = latent.expand(out)
        return out.transpose(0, 1)[None].to(value.dtype), None

    def _rounded(
        self, latent: LatentAttention | None, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What attention runs over, rounded to the stored type: the heads' own, or latent rows."""
        if latent is None:
            q, k, v = (t[0].to(self.stored).float() for t in (query, key, value))
            return q, k, v
        q, rows = latent.absorb(query, key, value, self.stored)
        return q, rows, rows[..., : latent.rank]

    def _check_shapes(self, query: Tensor, key: Tensor) -> None:
        queries, keys = query.shape[2], key.shape[2]
        if query.shape[0] != 1:
            raise CaptureError(f"batch of {query.shape[0]}; a trace holds one sequence")
        prefill = queries == keys == self.prompt_tokens
        if not prefill and not (queries == 1 and keys > self.prompt_tokens):
            raise CaptureError(
                f"{queries} queries over {keys} keys: neither a prefill in one piece nor a decode "
                "step over the whole past (cross attention, or a cache that drops tokens?)"
            )
        if query.shape[1] % key.shape[1]:
            raise CaptureError(f"{query.shape[1]} query heads over {key.shape[1]} KV heads")

    def _prefill(
        self, q: Tensor, k: Tensor, v: Tensor, rules: Rules, record: _Record | None
    ) -> Tensor:
        """All prompt queries, in blocks of queries so that memory stays bounded."""
        q_heads, count, _ = q.shape
        block = max(1, min(_BLOCK_QUERIES, _BLOCK_SCORES // (q_heads * count)))
        out = torch.empty(q_heads, count, v.shape[2], device=q.device)
        sums = torch.zeros(q_heads, count, dtype=torch.float64, device=q.device)
        for first in range(0, count, block):
            last = min(first + block, count)
            part, weights = attend(q[:, first:last], k[:, :last], v[:, :last], first, rules)
            out[:, first:last] = part
            if record is not None and self.sums:
                sums[:, :last] += weights.sum(dim=1, dtype=torch.float64)
        if record is not None:
            if self.probe:
                record.probe = q[:, -self.probe :].transpose(0, 1).cpu()
                record.probe_o = out[:, -self.probe :].transpose(0, 1).cpu()
            if self.sums:
                record.attention_sum = sums.float().cpu()
        return out

    def _decode(
        self, q: Tensor, k: Tensor, v: Tensor, rules: Rules, record: _Record | None
    ) -> Tensor:
        out, _ = attend(q, k, v, k.shape[1] - 1, rules)
        if record is not None:
            record.q.append(q[:, 0].cpu())
            record.o.append(out[:, 0].cpu())
            record.k, record.v = k, v  # the last step's are the whole sequence's
        return out

    def layer_trace(self, layer: int) -> LayerTrace:
        """What was captured of one layer, with its outputs."""
        record = self._records.get(layer)
        if record is None or record.k is None or record.v is None:
            raise CaptureError(
                f"layer {layer}: its attention never came by here; the model does not use the "
                "transformers attention interface, or this layer has no softmax attention"
            )

        def array(values: Tensor | None) -> np.ndarray | None:
            return None if values is None else values.detach().cpu().numpy()

        return LayerTrace(
            k=array(record.k),
            v=array(record.v),
            q=array(torch.stack(record.q)),
            scale=record.rules.scale,
            window=record.rules.window,
            logit_cap=record.rules.logit_cap,
            latent=record.latent,
            o=array(torch.stack(record.o)),
            probe=array(record.probe),
            probe_o=array(record.probe_o),
            attention_sum=array(record.attention_sum),
            sink_logits=array(record.rules.sink_logits),
        )


def check_mask(mask: Tensor | None, queries: int, keys: int, window: int) -> None:
    """Refuses a model whose mask is not causal with this window (chunked, prefix, padded)."""
    if mask is None:
        return
    rows = checked_rows(queries)
    if mask.shape[-2] != len(rows):
        mask = mask[..., rows, :]
    seen = mask if mask.dtype == torch.bool else mask == 0
    positions = torch.tensor(rows, device=mask.device) + (keys - queries)
    wanted = allowed_keys(positions, keys, window)
    if seen.shape[-1] != keys or not bool((seen == wanted).all()):
        kind = f"a window of {window}" if window else "causal attention"
        raise CaptureError(f"the model's mask is not that of {kind} (chunked, prefix or padded?)")
