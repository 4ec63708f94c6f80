"""Reads and writes kvsim traces (HDF5). Needs numpy and h5py only.

bfloat16 is an HDF5 16-bit float (sign 1, exponent 8 with bias 127, mantissa 7), so plain h5py reads
1.0 as 1.0. HDF5's own float -> bfloat16 conversion rounds ties up and truncates on overflow, hence
values are rounded here and written as raw bits.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

FORMAT = "kvsim-trace"
VERSION = 1
STORED_TYPES = ("bf16", "fp16", "fp32")
_CHUNK_ROWS = 1024
_MIN_CHUNKED_BYTES = 16384  # smaller datasets stay contiguous, a filter gains nothing there


class TraceError(Exception):
    """A trace that cannot be written or read; the message names the file and the place."""


@dataclass
class LayerTrace:
    """One layer. Arrays hold values already rounded to the stored type.

    Where latent, k is the file's kv, one row for all heads, and v its first v_head_dim columns.
    """

    k: np.ndarray  # [kv_heads, prompt_tokens + decode_steps, head_dim]
    v: np.ndarray  # [kv_heads, prompt_tokens + decode_steps, v_head_dim]
    q: np.ndarray  # [decode_steps, q_heads, head_dim], after RoPE, not scaled
    scale: float
    window: int = 0
    logit_cap: float = 0.0
    latent: bool = False
    o: np.ndarray | None = None  # [decode_steps, q_heads, v_head_dim]
    probe: np.ndarray | None = None  # [n, q_heads, head_dim]
    probe_o: np.ndarray | None = None  # [n, q_heads, v_head_dim]
    attention_sum: np.ndarray | None = None  # [q_heads, prompt_tokens]
    sink_logits: np.ndarray | None = None  # [q_heads]
    overrides: dict[str, Any] = field(default_factory=dict)  # root attributes that differ here

    def attributes(self) -> dict[str, Any]:
        """What the file says about this layer; the sizes come from the arrays themselves."""
        return {
            "q_heads": self.q.shape[1],
            "kv_heads": self.k.shape[0],
            "head_dim": self.k.shape[2],
            "v_head_dim": self.v.shape[2],
            "scale": float(self.scale),
            "window": int(self.window),
            "logit_cap": float(self.logit_cap),
            "layout": "latent" if self.latent else "heads",
            **self.overrides,
        }


@dataclass
class Trace:
    """One sequence: root attributes, token ids and layers by index."""

    model: str
    source: str
    license: str
    prompt_tokens: int
    decode_steps: int
    rope: str  # "applied" or "none"
    rope_theta: float
    rope_scaling: str  # "none" or the model's own setting as JSON
    rotary_dim: int
    synthetic: bool = False
    software: str = ""
    tokens: np.ndarray | None = None
    layers: dict[int, LayerTrace] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "source": self.source,
            "license": self.license,
            "prompt_tokens": self.prompt_tokens,
            "decode_steps": self.decode_steps,
            "rope": self.rope,
            "rope_theta": float(self.rope_theta),
            "rope_scaling": self.rope_scaling,
            "rotary_dim": self.rotary_dim,
            "synthetic": int(self.synthetic),
            "software": self.software,
        }


def to_bf16_bits(values: np.ndarray) -> np.ndarray:
    """Rounds float32 to bfloat16, ties to even; overflow becomes infinity, NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    return np.where(nan, quiet, rounded).astype(np.uint16)


def from_bf16_bits(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bit patterns (exact)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_type() -> h5py.h5t.TypeFloatID:
    """The HDF5 type. Fields come first: HDF5 refuses a smaller size before them."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_precision(16)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def is_bf16(kind: h5py.h5t.TypeID) -> bool:
    return (
        isinstance(kind, h5py.h5t.TypeFloatID)
        and kind.get_size() == 2
        and kind.get_fields() == (15, 7, 8, 0, 7)
        and kind.get_ebias() == 127
    )


def _encode(values: np.ndarray, stored: str) -> tuple[np.ndarray, h5py.h5t.TypeID]:
    """The array to write, bit for bit, and its type in the file."""
    if stored == "bf16":
        return to_bf16_bits(values), bf16_type()
    if stored == "int32":
        return np.ascontiguousarray(values, dtype="<i4"), h5py.h5t.STD_I32LE
    kind = {"fp16": np.dtype("<f2"), "fp32": np.dtype("<f4")}[stored]
    return np.ascontiguousarray(values, dtype=kind), h5py.h5t.py_create(kind)


def _chunk_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """One head and an even share of the rows, so that the last chunk is hardly padded."""
    rows = shape[-2]
    parts = math.ceil(rows / _CHUNK_ROWS)
    return (1,) * (len(shape) - 2) + (math.ceil(rows / parts), shape[-1])


def write_array(
    group: h5py.Group, name: str, values: np.ndarray, stored: str, compress: bool = False
) -> None:
    """Writes one dataset as raw bits of the stored type (shuffle and gzip 1 if asked)."""
    data, kind = _encode(values, stored)
    if stored != "int32" and not np.isfinite(values).all():
        raise TraceError(f"{group.name}/{name}: not finite in {stored}")
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_obj_track_times(False)  # the same content gives the same bytes
    if compress and data.ndim >= 2 and data.nbytes >= _MIN_CHUNKED_BYTES:
        wide = name in ("k", "v", "kv")
        plist.set_chunk(_chunk_shape(data.shape) if wide else data.shape)
        plist.set_shuffle()
        plist.set_deflate(1)
    space = h5py.h5s.create_simple(data.shape)
    dataset = h5py.h5d.create(group.id, name.encode(), kind, space, plist)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=dataset.get_type())


def _write_attributes(node: h5py.Group, attributes: dict[str, Any]) -> None:
    """Strings as variable-length UTF-8, whole numbers as int64, others as float64."""
    for name, value in attributes.items():
        if isinstance(value, str):
            node.attrs.create(name, value, dtype=h5py.string_dtype("utf-8"))
        elif isinstance(value, int):
            node.attrs.create(name, value, dtype=np.int64)
        else:
            node.attrs.create(name, value, dtype=np.float64)


def _write_layer(group: h5py.Group, layer: LayerTrace, stored: str, compress: bool) -> None:
    _write_attributes(group, layer.attributes())
    rows = {"kv": layer.k} if layer.latent else {"k": layer.k, "v": layer.v}
    for name, values in (rows | {"q": layer.q, "probe": layer.probe}).items():
        if values is not None:
            write_array(group, name, values, stored, compress)
    for name in ("o", "probe_o", "attention_sum", "sink_logits"):
        values = getattr(layer, name)
        if values is not None:
            write_array(group, name, values, "fp32", compress)


def _check_latent(index: int, layer: LayerTrace) -> None:
    if layer.k.shape[0] != 1:
        raise TraceError(f"/layers/{index}/kv: {layer.k.shape[0]} KV heads, expected 1 if latent")
    if not np.array_equal(layer.v, layer.k[..., : layer.v.shape[2]]):
        raise TraceError(f"/layers/{index}/kv: V is not its first {layer.v.shape[2]} columns")


def _check_shapes(trace: Trace) -> None:
    rows = trace.prompt_tokens + trace.decode_steps
    if trace.tokens is not None and trace.tokens.shape != (rows,):
        raise TraceError(f"/tokens: {trace.tokens.shape} instead of ({rows},)")
    for index, layer in trace.layers.items():
        kv_heads, q_heads = layer.k.shape[0], layer.q.shape[1]
        width, v_width = layer.k.shape[2], layer.v.shape[2]
        steps = trace.decode_steps
        wanted = {
            "k": (kv_heads, rows, width),
            "v": (kv_heads, rows, v_width),
            "q": (steps, q_heads, width),
            "o": (steps, q_heads, v_width),
            "probe": (None, q_heads, width),
            "probe_o": (None, q_heads, v_width),
            "attention_sum": (q_heads, trace.prompt_tokens),
            "sink_logits": (q_heads,),
        }
        for name, shape in wanted.items():
            values = getattr(layer, name)
            if values is None:
                continue
            got = values.shape if shape[0] is not None else (None, *values.shape[1:])
            if got != shape:
                raise TraceError(f"/layers/{index}/{name}: {got} instead of {shape}")
        if q_heads % kv_heads:
            raise TraceError(f"/layers/{index}: {q_heads} query heads, {kv_heads} KV heads")
        if layer.latent:
            _check_latent(index, layer)


@contextlib.contextmanager
def _whole_file(path: Path, force: bool) -> Iterator[Path]:
    """Yields a temporary name beside path, renamed to path only if all went well."""
    if path.exists() and not force:
        raise TraceError(f"{path}: exists (--force overwrites)")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_trace(
    path: Path, trace: Trace, stored: str = "bf16", compress: bool = False, force: bool = False
) -> None:
    """Writes the whole trace or nothing."""
    _check_shapes(trace)
    with _whole_file(path, force) as temporary:
        with h5py.File(temporary, "w") as file:
            _write_attributes(file, trace.attributes())
            if trace.tokens is not None:
                write_array(file, "tokens", trace.tokens, "int32")
            for index in sorted(trace.layers):
                group = file.create_group(f"layers/{index}")
                _write_layer(group, trace.layers[index], stored, compress)


def read_array(dataset: h5py.Dataset) -> np.ndarray:
    """Float values of a dataset; bfloat16 is read raw, which is faster than HDF5's conversion."""
    if not is_bf16(dataset.id.get_type()):
        return dataset[()]
    bits = np.empty(dataset.shape, dtype=np.uint16)
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=dataset.id.get_type())
    return from_bf16_bits(bits)


def read_keys_values(file: h5py.File, layer: h5py.Group) -> tuple[np.ndarray, np.ndarray]:
    """K and V of a layer; of a latent one, its rows and their first v_head_dim columns."""
    if read_attribute(file, layer, "layout") != "latent":
        return read_array(layer["k"]), read_array(layer["v"])
    rows = read_array(layer["kv"])
    return rows, rows[..., : int(read_attribute(file, layer, "v_head_dim"))]


def read_attribute(file: h5py.File, layer: h5py.Group, name: str) -> Any:
    """An attribute of a layer, or the root's, which is the default for all layers."""
    node = layer if name in layer.attrs else file
    if name not in node.attrs:
        raise TraceError(f"{file.filename}: {layer.name}: no attribute {name}")
    value = node.attrs[name]
    return value.decode() if isinstance(value, bytes) else value


def open_trace(path: Path) -> h5py.File:
    """Opens a trace for reading; raises TraceError for anything else."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise TraceError(f"{path}: {error}") from error
    kind, version = file.attrs.get("format"), file.attrs.get("version")
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind != FORMAT or version != VERSION:
        file.close()
        raise TraceError(f"{path}: format {kind!r} version {version}, not {FORMAT!r} {VERSION}")
    return file


def layer_indices(file: h5py.File) -> list[int]:
    return sorted(int(name) for name in file.get("layers", ()))
