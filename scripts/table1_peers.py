#!/usr/bin/env python3
"""Compares `hopmix train` with a plain PyTorch loop on the cells of table 1: one layer on the copy task.

The PyTorch model is the paper's equation as written: softmax over a dense mask, then a dense triangular solve (for attention, a product;
for the diagonal SSM, a loop over tokens). Both programs restart in each round and alternate. A step is the median after the warm-up.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from train_peers import ROOT, Failure, learning_rate, processor, train_hopmix

EXAMPLES = """examples:
  scripts/table1_peers.py
  scripts/table1_peers.py --rows 'dense recurrence' '2^k' --rounds 5 --json results/performance-table1.json
"""


class Solve(torch.autograd.Function):
    """y = (1 - B)^-1 x for strictly lower triangular B, with one transposed solve in the backward."""

    @staticmethod
    def forward(ctx, b, x):
        y = torch.linalg.solve_triangular(-b, x, upper=False, unitriangular=True)
        ctx.save_for_backward(b, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        b, y = ctx.saved_tensors
        dx = torch.linalg.solve_triangular(-b.mT, grad, upper=True, unitriangular=True)
        return (dx @ y.mT).tril(-1), dx


class Mixer(nn.Module):
    """y_i = d_self v_i + gate sum_j p_ij (y_j + d v_j) over the pattern; attention: sum_j p_ij v_j."""

    def __init__(self, block, width, heads, visible):
        super().__init__()
        self.heads, self.kind = heads, block["mixer"]
        self.q, self.k, self.v = (nn.Linear(2 * width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        if self.kind == "gated_linear_recurrence":
            self.gates = nn.Linear(2 * width, 2 * width)
        elif self.kind == "glr":
            self.gates = nn.Linear(2 * width, 3 * heads)
        if visible is not None:
            self.register_buffer("bias", torch.where(visible, 0.0, -1e9))
            self.register_buffer("reads", visible.any(-1).float()[:, None])

    def forward(self, x):
        x = torch.cat([x, F.pad(x, (0, 0, 1, -1))], dim=-1)
        if self.kind == "gated_linear_recurrence":
            decay, taken = torch.sigmoid(self.gates(x)).chunk(2, -1)
            y, rows = torch.zeros_like(x[:, 0, : decay.shape[-1]]), []
            for a, u in zip(decay.unbind(1), (taken * self.v(x)).unbind(1)):
                y = torch.addcmul(u, a, y)
                rows.append(y)
            return self.out(torch.stack(rows, 1))
        q, k, v = (m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + self.bias, -1)
        if self.kind == "glr":
            gate, d, d_self = torch.sigmoid(self.gates(x)).transpose(1, 2).unsqueeze(-1).chunk(3, 1)
            y = Solve.apply(gate * self.reads * p, (d + d_self) * v) - d * v
        else:
            y = p @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, model, block, vocabulary, length, visible):
        super().__init__()
        width = model["width"]
        self.embedding = nn.Parameter(0.16 * torch.randn(vocabulary, width))
        self.positions = nn.Parameter(0.1 * torch.randn(length, width))
        self.mixer = Mixer(block, width, model["heads"], visible)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(3))
        self.up, self.down = nn.Linear(width, model["mlp"] * width), nn.Linear(model["mlp"] * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = F.embedding(tokens, self.embedding) + self.positions
        x = x + self.mixer(self.norms[0](x))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x))


def train_plain(model, train, m, symbols):
    """(seconds, loss) of each step; each step makes its own batch, as hopmix does."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": train["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train["lr"], betas=(train["beta1"], train["beta2"]))
    steps = []
    for step in range(train["steps"]):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step)
        text = torch.randint(symbols, (train["batch"], m))
        tokens = torch.cat([text, torch.full((train["batch"], 1), symbols), text[:, :-1]], 1)
        loss = F.cross_entropy(model(tokens)[:, m:].flatten(0, 1), text.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train["clip"])
        optimizer.step()
        steps.append((time.perf_counter() - start, loss.item()))
    return steps


def visible(block, length):
    """Which keys a query reads [length, length]; None without a pattern."""
    lag = torch.arange(length)[:, None] - torch.arange(length)
    if block["mixer"] == "attention":
        return lag >= 0
    if block["mixer"] == "local_attention":
        return (lag >= 0) & (lag < block["window"])
    if block["mixer"] != "glr":
        return None
    starts, keys = torch.ops.hopmix.pattern(block["pattern"], length)[:2]
    rows = torch.repeat_interleave(torch.arange(length), starts.diff())
    mask = torch.zeros(length, length, dtype=torch.bool)
    mask[rows, keys.long()] = True
    return mask


def cell(table, row, binary, options, work):
    """One row's results: seconds per step of both programs, and their last losses."""
    block, base = row["blocks"][0], table["base"]
    task = next(c["task"] for c in table["columns"] if c["name"] == "copy")
    train = {**base["train"], "steps": options.steps}
    config = work / "config.toml"
    config.write_text("\n".join(["[task]", *toml(task), "[model]", *toml(base["model"]), "[[model.blocks]]", *toml(block),
                                 "[train]", *toml({**train, "log_every": 1, "eval_batches": 1})]) + "\n")  # fmt: skip
    rounds = {"hopmix": [], "plain": []}
    length = 2 * task["m"]
    for turn in range(options.rounds):
        print(f"\r{row['name']}: round {turn + 1} of {options.rounds}" + " " * 20, end="", file=sys.stderr, flush=True)
        rounds["hopmix"].append(train_hopmix(binary, config, ["threads=1"], work / f"{turn}"))
        torch.manual_seed(turn)
        model = Model(base["model"], block, task["symbols"] + 1, length, visible(block, length))
        rounds["plain"].append(train_plain(model, train, task["m"], task["symbols"]))
    parameters = sum(p.numel() for p in model.parameters())
    seconds = {name: statistics.median(s for steps in r for s, _ in steps[options.warm_up :]) for name, r in rounds.items()}
    losses = {name: statistics.fmean(loss for steps in r for _, loss in steps[-10:]) for name, r in rounds.items()}
    return {"name": row["name"], "parameters": parameters, "seconds": seconds, "losses": losses, "ratio": seconds["plain"] / seconds["hopmix"]}


def toml(values):
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="rows of configs/reproduce/table1.toml (all)")
    parser.add_argument("--steps", type=int, default=40, help="steps per run (40)")
    parser.add_argument("--warm-up", type=int, default=10, help="initial steps that do not count (10)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (3)")
    parser.add_argument("--hopmix", type=Path, default=ROOT / "build/bin/hopmix", metavar="FILE", help="the hopmix program (build/bin/hopmix)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
    options = parser.parse_args()
    if not options.hopmix.is_file():
        parser.error(f"--hopmix: '{options.hopmix}' does not exist; build it with `make build`")
    if not 0 <= options.warm_up < options.steps:
        parser.error(f"--warm-up {options.warm_up}: must be at least 0 and below --steps, {options.steps}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    return options


def main():
    options = parse()
    table = tomllib.loads((ROOT / "configs/reproduce/table1.toml").read_text())
    names = [row["name"] for row in table["rows"]]
    unknown = [name for name in options.rows or [] if name not in names]
    if unknown:
        print(f"table1_peers.py: --rows '{unknown[0]}' must be one of {', '.join(names)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    torch.ops.load_library(os.environ.get("HOPMIX_LIB", ROOT / "build/lib/libhopmix_ops.so"))
    results = []
    try:
        for row in table["rows"]:
            if options.rows is None or row["name"] in options.rows:
                with tempfile.TemporaryDirectory() as work:
                    results.append(cell(table, row, options.hopmix, options, Path(work)))
    except Failure as failure:
        print(f"table1_peers.py: {failure}", file=sys.stderr)
        return 2
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    print(f"{'':24}  {'hopmix':>10}  {'plain':>10}  faster by   losses of the last steps")
    for r in results:
        print(f"{r['name']:24}  {1e3 * r['seconds']['hopmix']:7.2f} ms  {1e3 * r['seconds']['plain']:7.2f} ms  {r['ratio']:9.2f}   "
              f"{r['losses']['hopmix']:.3f}, {r['losses']['plain']:.3f}")  # fmt: skip
    if options.json:
        everything = {"suite": "table1", "machine": {"cpu": processor(), "simd": torch.backends.cpu.get_cpu_capability()}, "results": results}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
