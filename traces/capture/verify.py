"""Checks a trace: dense float64 attention from the file against the model's own output.

    python3 verify.py TRACE...

The model's outputs are the datasets o (decode steps) and probe_o (probe queries) of the file,
written by capture.py --outputs. Needs numpy and h5py only. Exit status 1 if a trace is out of
tolerance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from trace_file import (
    TraceError,
    layer_indices,
    open_trace,
    read_array,
    read_attribute,
    read_keys_values,
)

DEFAULT_TOLERANCE = 1e-4

Outputs = Mapping[int, tuple[np.ndarray, "np.ndarray | None"]]  # layer -> (o, probe_o)


@dataclass(frozen=True)
class Rules:
    """How a layer weighs its keys."""

    scale: float
    window: int
    logit_cap: float
    sink_logits: np.ndarray | None


@dataclass(frozen=True)
class Report:
    """Relative L2 errors of one layer, over all its queries and heads."""

    layer: int
    kind: str  # "steps" or "probe"
    errors: np.ndarray  # [queries, q_heads]

    def line(self) -> str:
        return (
            f"layer {self.layer:>3}  {self.kind:<5}  queries {self.errors.shape[0]:>4}  "
            f"relative L2 mean {self.errors.mean():.2e}  max {self.errors.max():.2e}"
        )


def attention_weights(query: np.ndarray, keys: np.ndarray, rules: Rules) -> np.ndarray:
    """Softmax weights [q_heads, keys] of one query [q_heads, d] over keys [kv_heads, keys, d].

    The query belongs to the last key; keys outside the window get weight 0.
    """
    q_heads, (kv_heads, count, width) = query.shape[0], keys.shape
    grouped = query.reshape(kv_heads, q_heads // kv_heads, width)
    logits = (grouped @ keys.transpose(0, 2, 1)).reshape(q_heads, count) * rules.scale
    if rules.logit_cap:
        logits = rules.logit_cap * np.tanh(logits / rules.logit_cap)
    if rules.window and rules.window < count:
        logits[:, : count - rules.window] = -np.inf
    top = logits.max(axis=1, keepdims=True)
    if rules.sink_logits is not None:
        top = np.maximum(top, rules.sink_logits[:, None])
    weights = np.exp(logits - top)
    total = weights.sum(axis=1, keepdims=True)
    if rules.sink_logits is not None:
        total = total + np.exp(rules.sink_logits[:, None] - top)
    return weights / total


def attend(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Output [q_heads, v_d] of weights [q_heads, keys] over values [kv_heads, keys, v_d]."""
    q_heads, (kv_heads, count, width) = weights.shape[0], values.shape
    grouped = weights.reshape(kv_heads, q_heads // kv_heads, count)
    return (grouped @ values).reshape(q_heads, width)


def relative_l2(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Per head: the length of the difference over the length of what was wanted."""
    norm = np.maximum(np.linalg.norm(wanted, axis=-1), np.finfo(np.float32).tiny)
    return np.linalg.norm(got - wanted, axis=-1) / norm


def read_rules(file: h5py.File, layer: h5py.Group) -> Rules:
    sinks = layer.get("sink_logits")
    return Rules(
        scale=float(read_attribute(file, layer, "scale")),
        window=int(read_attribute(file, layer, "window")),
        logit_cap=float(read_attribute(file, layer, "logit_cap")),
        sink_logits=None if sinks is None else read_array(sinks).astype(np.float64),
    )


def _check_attention_sum(
    layer: h5py.Group, rules: Rules, prompt: int, probe_mass: np.ndarray | None
) -> None:
    """The sums of a prefill add up to one per query, and are at least what the probes gave."""
    if "attention_sum" not in layer:
        return
    sums = read_array(layer["attention_sum"]).astype(np.float64)
    total = sums.sum(axis=1)
    low = 0.0 if rules.sink_logits is not None else prompt * (1 - 1e-4)
    if (sums < 0).any() or (total > prompt * (1 + 1e-4)).any() or (total < low).any():
        raise TraceError(f"{layer.name}/attention_sum: rows do not add up to {prompt} queries")
    if probe_mass is not None and (probe_mass > sums * (1 + 1e-3) + 1e-6).any():
        raise TraceError(f"{layer.name}/attention_sum: less than the probe queries alone give")


def _outputs_of(
    layer: h5py.Group, index: int, outputs: Outputs | None
) -> tuple[np.ndarray, np.ndarray | None]:
    if outputs is not None:
        return outputs[index]
    if "o" not in layer:
        raise TraceError(
            f"{layer.file.filename}: {layer.name} has no dataset o to compare with "
            "(capture with --outputs)"
        )
    return read_array(layer["o"]), read_array(layer["probe_o"]) if "probe_o" in layer else None


def _verify_layer(file: h5py.File, index: int, outputs: Outputs | None) -> Iterator[Report]:
    layer = file["layers"][str(index)]
    prompt = int(read_attribute(file, layer, "prompt_tokens"))
    rules = read_rules(file, layer)
    k, v = (values.astype(np.float64) for values in read_keys_values(file, layer))
    q = read_array(layer["q"]).astype(np.float64)
    o, probe_o = _outputs_of(layer, index, outputs)

    def error(query: np.ndarray, count: int, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = attention_weights(query, k[:, :count], rules)
        return relative_l2(attend(weights, v[:, :count]), wanted.astype(np.float64)), weights

    steps = [error(q[s], prompt + s + 1, o[s])[0] for s in range(q.shape[0])]
    yield Report(index, "steps", np.array(steps))
    probe_mass = None
    if "probe" in layer and probe_o is not None:
        probe = read_array(layer["probe"]).astype(np.float64)
        probe_mass, errors = np.zeros((q.shape[1], prompt)), []
        for i, query in enumerate(probe):
            count = prompt - len(probe) + i + 1
            one, weights = error(query, count, probe_o[i])
            errors.append(one)
            probe_mass[:, :count] += weights
        yield Report(index, "probe", np.array(errors))
    _check_attention_sum(layer, rules, prompt, probe_mass)


def verify(path: Path, outputs: Outputs | None = None) -> list[Report]:
    """Errors of every layer; without outputs the file's own o and probe_o are the reference."""
    with open_trace(path) as file:
        return [r for i in layer_indices(file) for r in _verify_layer(file, i, outputs)]


def print_verdict(path: Path, reports: list[Report], tolerance: float) -> bool:
    """Prints one line per layer and the verdict; true if all is within tolerance."""
    for report in reports:
        print(report.line())
    worst = max((r.errors.max() for r in reports), default=float("nan"))
    good = bool(worst <= tolerance)  # a NaN fails
    verdict = "ok" if good else "FAILED"
    print(f"{path}: worst relative L2 {worst:.2e}, tolerance {tolerance:g}: {verdict}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=DEFAULT_TOLERANCE,
        help="largest relative L2 (%(default)s)",
    )
    arguments = parser.parse_args()
    try:
        good = [print_verdict(t, verify(t), arguments.tolerance) for t in arguments.traces]
    except (TraceError, KeyError, OSError) as error:
        print(f"verify.py: {error}", file=sys.stderr)
        return 1
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
