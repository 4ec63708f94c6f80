"""Captures Q, K and V of a Hugging Face causal language model as a kvsim trace.

The prompt is the first --context tokens of a text; it is prefilled in one piece, then --steps
tokens are decoded greedily (or forced). README.md beside this file tells how to use it and what to
beware of.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_file import STORED_TYPES, LayerTrace, Trace, TraceError, open_trace, write_trace
from verify import DEFAULT_TOLERANCE, print_verdict, verify


def parse_layers(text: str) -> list[int] | None:
    """'0,7,14-16' as numbers in order, or None for 'all'."""
    if text == "all":
        return None
    layers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            span = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            span = range(0)
        if not span:
            raise argparse.ArgumentTypeError(f"{part!r} is no layer or range of layers")
        layers.update(span)
    return sorted(layers)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    model = parser.add_argument_group("model")
    model.add_argument("--model", help="folder or name on the Hugging Face hub")
    model.add_argument("--gguf", type=Path, help="GGUF file (instead of, or inside, --model)")
    model.add_argument("--model-name", help="name in the trace (default: --model or file)")
    model.add_argument("--compute", choices=STORED_TYPES, default="fp32", help="weights' type")
    model.add_argument("--device", default="cpu", help="torch device")
    model.add_argument("--threads", type=positive, help="torch threads")
    text = parser.add_argument_group("text")
    text.add_argument("--text", type=Path, required=True, help="UTF-8 text that gives the prompt")
    text.add_argument("--bos", action="store_true", help="begin with the tokenizer's BOS token")
    text.add_argument("--context", type=positive, required=True, help="prompt tokens")
    text.add_argument("--steps", type=positive, default=16, help="decode steps")
    text.add_argument(
        "--force-tokens", type=Path, metavar="FILE",
        help="decode these tokens: those of a trace with the same prompt, or token ids as text",
    )  # fmt: skip
    what = parser.add_argument_group("what is kept")
    what.add_argument("--layers", type=parse_layers, default="all", help="0,7,14-16 or all")
    what.add_argument("--dtype", choices=STORED_TYPES, default="bf16", help="type of q, k and v")
    what.add_argument("--probe", type=natural, default=0, help="keep the last N prompt queries")
    what.add_argument(
        "--attention-sum", action=argparse.BooleanOptionalAction, default=True,
        help="keep the prefill's sum of weights per key",
    )  # fmt: skip
    what.add_argument(
        "--mla", choices=("latent", "expanded"), default="latent",
        help="of latent attention, keep its latent rows or K and V of every head",
    )  # fmt: skip
    what.add_argument("--outputs", action="store_true", help="keep the model's attention outputs")
    what.add_argument("--license", default="unknown", help="licence of model and text")
    what.add_argument("--source", help="where model and text come from (default: text's name)")
    out = parser.add_argument_group("file")
    out.add_argument("-o", "--output", type=Path, required=True, help="trace to write")
    out.add_argument("--compress", action="store_true", help="shuffle and gzip 1")
    out.add_argument("--force", action="store_true", help="overwrite")
    out.add_argument("--verify", action="store_true", help="read the file back and check it")
    out.add_argument("--tolerance", type=float, default=DEFAULT_TOLERANCE, help="of --verify")
    return parser


def load(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The model, with our attention, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hook import NAME, TORCH_TYPES

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    place: dict[str, Any] = {}
    folder = arguments.model
    if arguments.gguf:
        if not arguments.gguf.is_file():
            raise OSError(f"{arguments.gguf}: no such file")
        folder, place = str(arguments.gguf.parent), {"gguf_file": arguments.gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model or folder, **place)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=TORCH_TYPES[arguments.compute], attn_implementation=NAME, **place
    )
    return model.to(arguments.device).eval(), tokenizer


def prompt_ids(arguments: argparse.Namespace, tokenizer: Any) -> list[int]:
    """Exactly --context token ids. No special tokens: some tokenizers add them unasked."""
    from hook import CaptureError

    text = arguments.text.read_text(encoding="utf-8")
    ids = list(tokenizer(text, add_special_tokens=False).input_ids)
    if arguments.bos:
        if tokenizer.bos_token_id is None:
            raise CaptureError("--bos: the tokenizer has no BOS token")
        ids.insert(0, tokenizer.bos_token_id)
    if len(ids) < arguments.context:
        raise CaptureError(f"{arguments.text}: {len(ids)} tokens, --context is {arguments.context}")
    return ids[: arguments.context]


def forced_ids(path: Path, prompt: Sequence[int], steps: int) -> list[int]:
    """The token ids of the decode steps, from a trace or a text of numbers."""
    from hook import CaptureError

    with path.open("rb") as file:
        is_trace = file.read(8) == b"\x89HDF\r\n\x1a\n"
    if is_trace:
        with open_trace(path) as trace:
            if "tokens" not in trace:
                raise CaptureError(f"{path}: no dataset tokens")
            ids = [int(token) for token in trace["tokens"][()]]
        if ids[: len(prompt)] != list(prompt):
            raise CaptureError(f"{path}: its prompt is another one")
        ids = ids[len(prompt) :]
    else:
        try:
            ids = [int(word) for word in path.read_text().split()]
        except ValueError as error:
            raise CaptureError(f"{path}: {error}") from None
    if len(ids) < steps:
        raise CaptureError(f"{path}: {len(ids)} tokens to decode, --steps is {steps}")
    return ids[:steps]


def run_model(
    model: Any, prompt: Sequence[int], steps: int, forced: Sequence[int] | None
) -> list[int]:
    """Prefill in one piece, then single steps; returns the tokens fed in at the decode steps."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()  # without a config no layer drops tokens outside its window
    feed, fed = list(prompt), []
    with torch.inference_mode():
        for step in range(steps + 1):
            ids = torch.tensor([feed], device=model.device)
            logits = model(ids, past_key_values=cache, use_cache=True, **_last_logit(model)).logits
            if step < steps:
                fed.append(int(logits[0, -1].argmax()) if forced is None else forced[step])
                feed = fed[-1:]
    return fed


def _last_logit(model: Any) -> dict[str, int]:
    """Asks for one row of logits where the model can: all rows of a long prompt are gigabytes."""
    import inspect

    known = inspect.signature(model.forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in known else {}


def rope_attributes(config: Any, head_dim: int) -> dict[str, Any]:
    """How positions entered Q and K."""
    theta = getattr(config, "rope_theta", None)
    if theta is None:
        return {"rope": "none", "rope_theta": 0.0, "rope_scaling": "none", "rotary_dim": 0}
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    part = getattr(config, "partial_rotary_factor", None) or getattr(config, "rotary_pct", 1.0)
    return {
        "rope": "applied",
        "rope_theta": float(theta),
        "rope_scaling": "none" if kind == "default" else json.dumps(scaling, sort_keys=True),
        "rotary_dim": getattr(config, "qk_rope_head_dim", None) or int(head_dim * part),
    }


def scale_note(config: Any, scale: float) -> str | None:
    """Told where YaRN asks for another softmax scale than the model's code applies."""
    wanted = (getattr(config, "rope_scaling", None) or {}).get("mscale_all_dim")
    nope, rope = (getattr(config, f"qk_{part}_head_dim", 0) for part in ("nope", "rope"))
    if not wanted or not nope or abs(scale * (nope + rope) ** 0.5 - 1) > 1e-6:
        return None
    return (
        f"note: scale {scale:.6g} is 1/sqrt({nope + rope}): this transformers does not apply "
        f"mscale_all_dim {wanted}, so the trace does not show the model as it was trained"
    )


def layer_rope(config: Any, module: Any, window: int) -> dict[str, Any]:
    """Attributes of a layer whose positions differ from the root's."""
    if getattr(module, "use_rope", True) in (False, 0):
        return {"rope": "none", "rope_theta": 0.0, "rope_scaling": "none", "rotary_dim": 0}
    local = getattr(config, "rope_local_base_freq", None)
    if local is not None and window:
        return {"rope_theta": float(local), "rope_scaling": "none"}
    return {}


def software(arguments: argparse.Namespace) -> str:
    import torch
    import transformers

    return (
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{arguments.compute} on {arguments.device}"
    )


def capture(arguments: argparse.Namespace) -> Trace:
    """Runs the model and returns everything that was kept, outputs included."""
    from hook import CaptureError, Recorder

    recorder = Recorder(
        arguments.layers or [], arguments.context, arguments.dtype, arguments.probe,
        arguments.attention_sum,
    )  # fmt: skip
    recorder.register()
    model, tokenizer = load(arguments)
    if arguments.mla == "latent":
        recorder.watch_latents(model)
    config = model.config.get_text_config()
    count = config.num_hidden_layers
    layers = list(range(count)) if arguments.layers is None else arguments.layers
    if layers[-1] >= count:
        raise CaptureError(f"--layers {layers[-1]}: the model has layers 0 to {count - 1}")
    recorder.layers = frozenset(layers)
    prompt = prompt_ids(arguments, tokenizer)
    limit = getattr(config, "max_position_embeddings", None)
    if limit and len(prompt) + arguments.steps > limit:
        print(f"note: beyond the model's {limit} positions", file=sys.stderr)
    forced = None
    if arguments.force_tokens:
        forced = forced_ids(arguments.force_tokens, prompt, arguments.steps)
    fed = run_model(model, prompt, arguments.steps, forced)
    print(f"decoded: {tokenizer.decode(fed)!r}", file=sys.stderr)
    kept = {layer: recorder.layer_trace(layer) for layer in layers}
    for layer, data in kept.items():
        data.overrides = layer_rope(config, recorder.modules[layer], data.window)
    first: LayerTrace = kept[layers[0]]
    if note := scale_note(config, first.scale):
        print(note, file=sys.stderr)
    return Trace(
        model=arguments.model_name or arguments.model or arguments.gguf.stem,
        source=arguments.source or arguments.text.name,
        license=arguments.license,
        prompt_tokens=len(prompt),
        decode_steps=len(fed),
        software=software(arguments),
        tokens=np.array([*prompt, *fed], dtype=np.int32),
        layers=kept,
        **rope_attributes(config, first.k.shape[2]),
    )


def save_and_check(arguments: argparse.Namespace, trace: Trace) -> bool:
    outputs = {index: (layer.o, layer.probe_o) for index, layer in trace.layers.items()}
    if not arguments.outputs:
        for layer in trace.layers.values():
            layer.o = layer.probe_o = None
    write_trace(arguments.output, trace, arguments.dtype, arguments.compress, arguments.force)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes", file=sys.stderr)
    if not arguments.verify:
        return True
    return print_verdict(arguments.output, verify(arguments.output, outputs), arguments.tolerance)


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not arguments.model and not arguments.gguf:
        parser.error("one of --model and --gguf is needed")
    if arguments.probe > arguments.context:
        parser.error(f"--probe {arguments.probe} is more than --context {arguments.context}")
    if arguments.output.exists() and not arguments.force:  # said before the work, not after
        print(f"capture.py: {arguments.output}: exists (--force overwrites)", file=sys.stderr)
        return 1
    try:
        return 0 if save_and_check(arguments, capture(arguments)) else 1
    except TraceError as error:
        print(f"capture.py: {error}", file=sys.stderr)
    except Exception as error:  # whatever the model's code raises, told in one line
        print(f"capture.py: {type(error).__name__}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
