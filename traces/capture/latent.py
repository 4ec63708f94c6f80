"""Multi-head latent attention (DeepSeek-V2 and -V3): one row per token that all heads share.

The model multiplies the latent of a token, compressed_kv after its norm, by kv_b_proj, whose rows
are W_uk and W_uv of each head, and attends to the expanded heads. Here W_uk is absorbed into the
query instead, so that attention runs over the latent rows themselves:

    q . kv = (W_uk^T q_nope) . latent + q_rope . k_rope
    output of a head = W_uv (weights @ latent)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from errors import CaptureError

_NEEDED = ("kv_b_proj", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
# Relative; what other orders of summation and roundings of the compute type may differ by.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


def is_latent(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in _NEEDED)


class LatentAttention:
    """One attention module: the latent rows that it has seen, and its weights in between."""

    def __init__(self, module: nn.Module) -> None:
        self.rank = module.kv_lora_rank
        self.nope = module.qk_nope_head_dim
        self.rope = module.qk_rope_head_dim
        self.values = module.v_head_dim
        self._project = module.kv_b_proj
        self._new: Tensor | None = None  # [n, rank], as kv_b_proj got them last
        self._past: Tensor | None = None  # [tokens, rank], of the stored type's values
        self._project.register_forward_pre_hook(self._see)

    def _see(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._new = arguments[0][0]

    def _weights(self) -> tuple[Tensor, Tensor]:
        """W_uk [q_heads, nope, rank] and W_uv [q_heads, values, rank]."""
        weights = self._project.weight.float().view(-1, self.nope + self.values, self.rank)
        return weights[:, : self.nope], weights[:, self.nope :]

    def absorb(
        self, query: Tensor, key: Tensor, value: Tensor, stored: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Queries [q_heads, n, rank + rope] and rows [1, tokens, rank + rope], rounded to stored.

        The arguments are those of the attention call: [1, q_heads, n or tokens, d], expanded.
        """
        new, self._new = self._new, None
        got, tokens = 0 if new is None else len(new), query.shape[2]
        if new is None or got != tokens:
            raise CaptureError(f"kv_b_proj got {got} latent rows, expected {tokens}, one per token")
        up_key, up_value = self._weights()
        self._check_expanded(new, key[0], value[0], up_key, up_value)
        rounded = new.to(stored).float()
        first = query.shape[2] == key.shape[2]
        self._past = rounded if first else torch.cat([self._past, rounded])
        k_rope = key[0, 0, :, self.nope :].to(stored).float()
        q_nope, q_rope = query[0].float().split([self.nope, self.rope], dim=-1)
        q = torch.cat([q_nope @ up_key, q_rope], dim=-1).to(stored).float()
        return q, torch.cat([self._past, k_rope], dim=-1)[None]

    def expand(self, out: Tensor) -> Tensor:
        """Of outputs [q_heads, n, rank] over latent rows, those of the heads [q_heads, n, v_d]."""
        return out @ self._weights()[1].transpose(1, 2)

    def _check_expanded(
        self, new: Tensor, key: Tensor, value: Tensor, up_key: Tensor, up_value: Tensor
    ) -> None:
        """First and last of the new rows: the model's K and V must be what the latents give."""
        for row in {0, len(new) - 1}:
            at = key.shape[1] - len(new) + row
            latent = new[row].float()
            rope = key[:1, at, self.nope :].expand(key.shape[0], -1)
            self._check_near("K", key[:, at], torch.cat([up_key @ latent, rope], dim=-1))
            self._check_near("V", value[:, at], up_value @ latent)

    @staticmethod
    def _check_near(name: str, got: Tensor, wanted: Tensor) -> None:
        if got.shape != wanted.shape:
            raise CaptureError(
                f"{name} of the heads is {list(got.shape)} for a token, its latent row gives "
                f"{list(wanted.shape)}"
            )
        error = float((got.float() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        tolerance = _TOLERANCES.get(got.dtype, 1e-4)
        if not error <= tolerance:  # a NaN fails
            raise CaptureError(
                f"{name} of the heads is not kv_b_proj of the latent row: relative L2 {error:.1e}, "
                f"expected at most {tolerance:g} (--mla expanded keeps K and V of the heads)"
            )
