#!/usr/bin/env python3
"""Prints a checksum of the results and gradients of every operator, to check whether a change preserves their bits.

    .venv/bin/python scripts/checksums.py > before.txt
    (change something, build)
    .venv/bin/python scripts/checksums.py | diff before.txt -

HOPMIX_LIB selects a different operator library. Sums of matrix products depend on the engine: HOPMIX_GEMM=onednn|highway|mkl."""

import argparse
import hashlib
import os
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]


def rand(shape, dtype, seed, low=-1.0, high=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(tuple(shape), generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)


def cases(dtype, B=2, T=150, H=4, G=2, D=20, V=16):
    """Yields the name of a case, the operator, its differentiable inputs and its other arguments."""
    state = torch.float64 if dtype == torch.float64 else torch.float32
    r = lambda seed, *shape, **limits: rand(shape, dtype, seed, **limits)
    q, k, v = r(1, B, T, H, D, low=-2, high=2), r(2, B, T, G, D), r(3, B, T, G, V)
    unit = torch.nn.functional.normalize(k.double(), dim=-1).to(dtype)
    gates = [r(4 + i, B, T, H, low=0) for i in range(3)]
    decay, channels = r(7, B, T, H, low=-0.5, high=0), r(8, B, T, H, D, low=-0.5, high=0)
    start = rand((B, H, D, V), state, 9)
    levels = r(10, B, T, H, 9)
    flat = lambda seed, *shape, **limits: r(seed, B, T, *shape, **limits)
    for spec in ("k^2+1", "cached(2^k)", "dense"):
        yield f"glr_attention {spec}", "glr_attention", [q, k, v, *gates], (spec,)
        yield f"glr_softmax {spec}", "glr_softmax", [q, k, v, *gates], (spec,)
        yield f"sparse_attention {spec}", "sparse_attention", [q, k, v], (spec, True)
        reads = len(torch.ops.hopmix.pattern(spec, T)[1])
        explicit = [r(11, B, H, T), r(12, B, H, reads), r(13, B, H, reads, low=-0.05, high=0.05), r(14, B, T, H, D)]
        yield f"glr {spec}", "glr", explicit, (spec,)
        yield f"glr_normalized {spec}", "glr_normalized", [explicit[0], explicit[1], explicit[2] - 5, explicit[3]], (spec,)
    yield "dense_recurrence", "dense_recurrence", [q, k, v, *gates], ()
    yield "chacal", "chacal", [q, k, v], (0.5,)
    yield "block_chacal", "block_chacal", [q, k, v], (0.5,)
    yield "attention", "attention", [q, k, v], ()
    yield "attention_topk", "attention_topk", [q, k, v], (4,)
    yield "linear_attention", "linear_attention", [q, k, v], (None, start)
    yield "ssd", "ssd", [q, k, v, decay], (None, start)
    yield "gla", "gla", [q, k, v, channels], (None, start)
    yield "delta_rule", "delta_rule", [q, unit, v, gates[0]], (None, start)
    yield "gated_delta_rule", "gated_delta_rule", [q, unit, v, decay, gates[0]], (None, start)
    yield "kda", "kda", [q, unit, v, channels, gates[0]], (None, start)
    yield "log_linear_attention", "log_linear_attention", [q, k, v, decay, levels], ()
    yield "log_linear_delta_rule", "log_linear_delta_rule", [q, unit, v, decay, gates[0], levels], ()
    yield "linear_recurrence", "linear_recurrence", [flat(15, 33, low=0), flat(16, 33)], ()
    yield "selective_scan", "selective_scan", [flat(17, 24), flat(18, 24, low=0), rand((24, 5), state, 19, low=-2, high=0),
                                               flat(20, 5), flat(21, 5), rand((24,), state, 22)], ()
    yield "short_convolution", "short_convolution", [flat(23, 33), r(24, 33, 4)], ()
    yield "rms_norm", "rms_norm", [flat(25, 33), r(26, 33)], ()
    yield "sliding_window_recurrence", "sliding_window_recurrence", [flat(15, 33, low=0), flat(16, 33)], (32,)
    maps = [r(27, 48, 33), r(28, 48), r(29, 20, 48), r(30, 20)]
    yield "linear", "linear", [flat(25, 33), maps[0], maps[1]], ()
    yield "mlp", "mlp", [flat(25, 33), *maps], ()
    yield "rope", "rope", [r(31, B, T, H, D)], (r(32, 1, T, D // 2), r(33, 1, T, D // 2))
    targets = torch.arange(B * T) % 48
    yield "head_loss", "head_loss", [flat(25, 33).reshape(-1, 33), maps[0], maps[1]], (targets,)
    retrieved = torch.ops.hopmix.attention_topk(q, k, v, 4, None, False)[1]
    yield "gather_attention", "gather_attention", [q, k, v], (retrieved,)
    yield "retrieved_recurrence", "retrieved_recurrence", [q, k, v, gates[0]], (retrieved, 3)
    yield "retrieved_glr", "retrieved_glr", [q, k, v, *gates], (retrieved,)


def checksum(operator, inputs, rest):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = getattr(torch.ops.hopmix, operator)(*leaves, *rest)
    outputs = [t for t in (out if isinstance(out, tuple) else (out,))]
    smooth = [t for t in outputs if t.requires_grad]
    weights = [rand(t.shape, t.dtype, 99) for t in smooth]
    grads = torch.autograd.grad(smooth, leaves, weights, allow_unused=True, materialize_grads=True)
    digest = hashlib.sha256()
    for t in [*outputs, *grads]:
        digest.update(t.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.ops.load_library(os.environ.get("HOPMIX_LIB", str(ROOT / "build/lib/libhopmix_ops.so")))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for kv_heads in (2, 4):  # heads that share keys, and heads with keys of their own
            for name, operator, inputs, rest in cases(dtype, G=kv_heads):
                label = f"{str(dtype).removeprefix('torch.'):9} {name:32} G {kv_heads}"
                print(f"{label} {checksum(operator, inputs, rest)}", flush=True)


if __name__ == "__main__":
    main()
