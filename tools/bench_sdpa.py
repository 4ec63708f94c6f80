#!/usr/bin/env python3
"""Times PyTorch's decode attention (FlashAttention-2 and cuDNN) as kvsim measure times ours.

  bench_sdpa.py --shape 32/8/128 --context 32768[,...] --batch 1[,...] --append SAMPLES.jsonl
  bench_sdpa.py --merge SAMPLES.jsonl -o sdpa.csv

The first form is one process's turn: calls in a CUDA graph over copies of K and V (five times the
L2 in K alone), the stream held while the graph is enqueued, back ends in ABBA order, at least 30
samples and until the noise is below 0.5 % or 2 s have passed. It appends one line per case and back
end. The second form makes a table of the medians of all turns, with the bootstrap's 95 % interval.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
import time
from collections import defaultdict

COLDNESS = 5  # K of all copies over the L2
GRAPH_US = 2000
MOST_CALLS = 512
LEAST_SAMPLES = 30
SECONDS = 2.0
QUIET = 0.005
HOLD_CYCLES = 4_000_000  # about 2 ms, longer than it takes to enqueue a graph
RESAMPLES = 10000
BACKENDS = {"fa2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


class Backend:
    """One back end on one case: a graph of calls that take the copies in turn."""

    def __init__(self, name, case, copies):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.torch, self.name = torch, name
        self.kind = getattr(SDPBackend, BACKENDS[name])
        self.sdpa_kernel = sdpa_kernel
        self.copies, self.gqa = copies, case["q_heads"] != case["kv_heads"]
        self.samples: list[float] = []
        self.capture(len(copies))
        us = self.time() * self.calls
        rounds = min(max(round(GRAPH_US / us + 0.5), 1), max(MOST_CALLS // len(copies), 1))
        self.capture(len(copies) * rounds)

    def call(self, index):
        q, k, v = self.copies[index % len(self.copies)]
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.gqa)

    def capture(self, calls):
        torch = self.torch
        self.calls = calls
        self.graph = torch.cuda.CUDAGraph()
        with self.sdpa_kernel(self.kind):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for index in range(3):
                    self.call(index)
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph):
                for index in range(calls):
                    self.call(index)
        self.time()

    def time(self):
        """Microseconds per call of one launch of the graph."""
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HOLD_CYCLES)
        begin.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.calls


def make_copies(case, seed):
    import torch

    torch.manual_seed(seed)
    batch, context, dim = case["batch"], case["context_tokens"], case["head_dim"]
    k_bytes = batch * case["kv_heads"] * context * dim * 2
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(max(-(-COLDNESS * l2 // k_bytes), 1), 512)
    copies = []
    for _ in range(count):
        rows = ((case["q_heads"], 1), (case["kv_heads"], context), (case["kv_heads"], context))
        copies.append(
            tuple(
                torch.randn(batch, heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
                for heads, tokens in rows
            )
        )
    return copies


def quiet(samples):
    return statistics.stdev(samples) / statistics.mean(samples) < QUIET


def measure_case(case, seed):
    import torch

    copies = make_copies(case, seed)
    backends, lines = [], []
    for name in BACKENDS:
        try:
            backends.append(Backend(name, case, copies))
        except RuntimeError as error:  # the back end refuses the shape
            lines.append({**case, "backend": name, "error": str(error).splitlines()[0]})
    start = time.monotonic()
    turn = 0
    while backends:
        count = len(backends[0].samples)
        settled = count >= LEAST_SAMPLES and all(quiet(b.samples) for b in backends)
        if settled or (count >= LEAST_SAMPLES and time.monotonic() - start > SECONDS):
            break
        for backend in backends if turn % 2 == 0 else backends[::-1]:
            backend.samples.append(backend.time())
        turn += 1
    for backend in backends:
        lines.append(
            {
                **case,
                "backend": backend.name,
                "latency_us": statistics.median(backend.samples),
                "samples": len(backend.samples),
                "copies": len(copies),
            }
        )
    for line in lines:
        line.update(
            device=torch.cuda.get_device_name(),
            torch=torch.__version__,
            cudnn=torch.backends.cudnn.version(),
            cuda=torch.version.cuda,
        )
    return lines


def cases_of(options):
    for shape in options.shape.split(","):
        q_heads, kv_heads, dim = map(int, shape.split("/"))
        for context in options.context.split(","):
            for batch in options.batch.split(","):
                yield {
                    "batch": int(batch),
                    "context_tokens": int(context),
                    "q_heads": q_heads,
                    "kv_heads": kv_heads,
                    "head_dim": dim,
                }


def interval(medians):
    """The bootstrap's 95 % interval of the median."""
    rng = random.Random(0)
    resamples = (rng.choices(medians, k=len(medians)) for _ in range(RESAMPLES))
    values = sorted(statistics.median(resample) for resample in resamples)
    return values[int(0.025 * RESAMPLES)], values[-1 - int(0.025 * RESAMPLES)]


CASE_KEYS = ("batch", "context_tokens", "q_heads", "kv_heads", "head_dim")


def row_of(case, backend, lines):
    """One row with the first columns of kvsim's measured CSV."""
    medians = [line["latency_us"] for line in lines]
    low, high = interval(medians)
    latency = statistics.median(medians)
    rows = case["batch"] * case["context_tokens"] * case["kv_heads"]
    first = lines[0]
    return {
        "method": "dense_decode",
        "framework": "pytorch",
        "framework_version": first["torch"],
        "device": first["device"],
        **case,
        "kv_dtype": "bfloat16",
        "q_dtype": "bfloat16",
        "window_tokens": 0,
        "latency_us": round(latency, 3),
        "power_w": "",
        "power_reliable": 0,
        "suspect": 0,
        "suspect_reason": "",
        "kernel": backend,
        "latency_low_us": round(low, 3),
        "latency_high_us": round(high, 3),
        "bandwidth_gb_per_s": round(4 * rows * case["head_dim"] * 1e-3 / latency, 1),
        "processes": len(lines),
        "samples": sum(line["samples"] for line in lines),
        "copies": first["copies"],
        "cuda": first["cuda"],
        "cudnn": first["cudnn"],
    }


def merge(path, output):
    groups = defaultdict(list)
    with open(path) as file:
        for text in file:
            line = json.loads(text)
            groups[(*(line[key] for key in CASE_KEYS), line["backend"])].append(line)
    rows = []
    for (*values, backend), lines in groups.items():
        case = dict(zip(CASE_KEYS, values))
        if "error" in lines[0]:
            print(f"{backend} {case}: refused: {lines[0]['error']}")
            continue
        row = row_of(case, backend, lines)
        rows.append(row)
        print(
            f"{backend:6} {case['q_heads']}/{case['kv_heads']}/{case['head_dim']} batch "
            f"{case['batch']} x {case['context_tokens']}: {row['latency_us']:.2f} us "
            f"[{row['latency_low_us']:.2f}, {row['latency_high_us']:.2f}]"
        )
    if output and rows:
        with open(output, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="32/8/128")
    parser.add_argument("--context", default="32768")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--append", metavar="SAMPLES.jsonl")
    parser.add_argument("--merge", metavar="SAMPLES.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE.csv")
    options = parser.parse_args()
    if options.merge:
        merge(options.merge, options.output)
        return 0
    if not options.append:
        parser.error("give --append or --merge")
    for case in cases_of(options):
        lines = measure_case(case, time.time_ns() % 2**31)
        with open(options.append, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
