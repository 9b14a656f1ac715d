#!/usr/bin/env python3
"""Compares the speed of `hopmix train` with PyTorch programs that train the same softmax attention model.

Each round trains the config with build/bin/hopmix, then the same architecture with attention in every block in PyTorch, eager and with
torch.compile, using the config's AdamW, clipping, schedule and batches. All restart in each round and alternate, so that a machine that
slows down slows all of them. Speeds are based on the median time of a step after the warm-up.

For an attention config, the peer must have the same parameters, name by name. For any other mixer, the peer is attention of the same sizes.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = """examples:
  scripts/train_peers.py configs/text-attention.toml
  scripts/train_peers.py configs/text-attention.toml --set model.token_shift=false --precision bfloat16
  scripts/train_peers.py configs/text-glr.toml --json glr.json
  scripts/train_peers.py configs/text-attention.toml --steps 12 --warm-up 3 --set model.width=512 --set model.heads=8 \\
      --set task.length=1024 --set train.batch=1 --set model.blocks.0.repeat=4
"""


class Failure(Exception):
    """An error with a one-line message for the user."""


class Attention(nn.Module):
    def __init__(self, model):
        super().__init__()
        width, inputs = model["width"], model["width"] * (2 if model["token_shift"] else 1)
        self.heads, self.shift = model["heads"], model["token_shift"]
        self.qkv = nn.Linear(inputs, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, turns):
        if self.shift:
            x = torch.cat([x, F.pad(x, (0, 0, 1, -1))], dim=-1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        if turns is not None:
            q, k = rotate(q, turns), rotate(k, turns)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def rotate(x, turns):
    """Rotates neighbouring pairs; turns is (cos, sin), each [T, width / 2]."""
    cos, sin = (t.to(x.dtype) for t in turns)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        width, inner = model["width"], model["mlp"] * model["width"]
        self.mixer, self.mixer_norm = Attention(model), nn.RMSNorm(width, eps=1e-6)
        self.has_mlp = inner > 0
        if self.has_mlp:
            self.mlp_norm = nn.RMSNorm(width, eps=1e-6)
            self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x, turns):
        x = x + self.mixer(self.mixer_norm(x), turns)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)))) if self.has_mlp else x


class Model(nn.Module):
    def __init__(self, model, blocks, vocabulary, length):
        super().__init__()
        width, head = model["width"], model["width"] // model["heads"]
        self.embedding = nn.Parameter(torch.empty(vocabulary, width))
        learned, turned = model["positions"] == "learned", model["positions"] == "rope"
        self.positions = nn.Parameter(torch.empty(model["max_length"], width)) if learned else None
        for i in range(blocks):
            self.add_module(f"blocks_{i}", Block(model))
        self.blocks = [getattr(self, f"blocks_{i}") for i in range(blocks)]
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, vocabulary)
        self.turns = None
        if turned:
            frequency = 10000.0 ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
            angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
            self.turns = (angle.cos().float(), angle.sin().float())
        self.reset()

    @torch.no_grad()
    def reset(self):
        """Initializes with hopmix's distributions, but not its random numbers."""
        for module in self.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        self.embedding.normal_().mul_(0.16)
        if self.positions is not None:
            self.positions.normal_().mul_(0.1)

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.embedding)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.turns)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Text:
    """Windows at random positions of a text."""

    def __init__(self, path, length, batch):
        self.bytes = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        self.length, self.batch = length, batch
        if len(self.bytes) <= length + 1:
            raise Failure(f"'{path}' has {len(self.bytes)} bytes, but must have more than {length + 1}")

    def sample(self, generator):
        starts = torch.randint(len(self.bytes) - self.length - 1, (self.batch, 1), generator=generator)
        rows = self.bytes[starts + torch.arange(self.length + 1)].long()
        return rows[:, :-1], rows[:, 1:]


def learning_rate(train, step):
    warmup, steps = train["warmup"], train["steps"]
    if step < warmup:
        return train["lr"] * (step + 1) / warmup
    return train["lr"] * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train_torch(model, run, train, text, seed):
    """(seconds, loss) of each step. `run` is the model or its compiled version."""
    torch.manual_seed(seed)
    model.reset()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": train["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    betas = (train["beta1"], train["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=train["lr"], betas=betas, eps=1e-8, fused=True)
    generator, steps = torch.Generator().manual_seed(seed), []
    autocast = train["precision"] == "bfloat16"
    for step in range(train["steps"]):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step)
        tokens, targets = text.sample(generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = run(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train["clip"] or math.inf, foreach=True)
        optimizer.step()
        value = loss.item()
        steps.append((time.perf_counter() - start, value))
    return steps


def train_hopmix(binary, config, settings, folder):
    """(seconds, loss) of each step, from the run's own metrics."""
    command = [binary, "train", config, "--out", folder]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exited with code {done.returncode}"]
        raise Failure(lines[-1] if lines[-1].startswith("hopmix: ") else f"{' '.join(map(str, command))}: {lines[-1]}")
    steps, before = [], 0.0
    for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            steps.append((entry["seconds"] - before, entry["loss"]))
            before = entry["seconds"]
    return steps


def shapes_of(folder):
    """{name: shape} of the weights of a run."""
    with open(Path(folder) / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(value["shape"]) for name, value in header.items() if name != "__metadata__"}


def check_parameters(model, shapes):
    own = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if own == shapes:
        return
    for name in sorted(own.keys() | shapes.keys()):
        if own.get(name) != shapes.get(name):
            raise Failure(f"parameter '{name}' is {shapes.get(name)} in hopmix and {own.get(name)} in PyTorch: not the same model")


def describe(binary, config, settings, work):
    """(resolved config, number of blocks, shapes with attention in every block, shapes of the config itself)."""
    one_step = [*settings, "train.steps=1", "train.eval_batches=1"]
    train_hopmix(binary, config, one_step, work / "given")
    resolved = tomllib.loads((work / "given" / "config.toml").read_text())
    task = resolved["task"]
    if task["name"] != "text" or task["tokenizer"] != "bytes" or task["documents"] != "none":
        raise Failure(f"'{config}' must use the task text with bytes as tokens and without documents, which is what the peers support")
    blocks = sum(block.get("repeat", 1) for block in resolved["model"]["blocks"])
    attention = f"model.blocks=[{{mixer='attention', repeat={blocks}}}]"
    train_hopmix(binary, config, [*one_step, attention], work / "attention")
    return resolved, blocks, shapes_of(work / "attention"), shapes_of(work / "given")


def count(shapes):
    return sum(math.prod(shape) for shape in shapes.values())


def summary(name, rounds, tokens, warm_up, parameters):
    times = [seconds for steps in rounds for seconds, _ in steps[warm_up:]]
    seconds = statistics.median(times)
    tail = [loss for _, loss in rounds[0][-10:]]
    return {
        "name": name,
        "parameters": parameters,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "rounds": [statistics.median(s for s, _ in steps[warm_up:]) for steps in rounds],
        "first_loss": rounds[0][0][1],
        "last_loss": statistics.fmean(tail),
    }


def print_table(results):
    own = results[0]["tokens_per_second"]
    rows = [["", "parameters", "ms per step", "tokens/s", "hopmix is faster by", "first loss", "last losses"]]
    for r in results:
        ratio = "" if r is results[0] else f"{own / r['tokens_per_second']:.2f}"
        rows.append([r["name"], str(r["parameters"]), f"{1e3 * r['seconds']:.2f}", f"{r['tokens_per_second']:.0f}", ratio,
                     f"{r['first_loss']:.3f}", f"{r['last_loss']:.3f}"])  # fmt: skip
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) if c == 0 else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths))).rstrip())


def processor():
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else "unknown"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="a config of the task text with bytes as tokens")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `hopmix train`")
    parser.add_argument("--steps", type=int, default=40, help="steps per run (40)")
    parser.add_argument("--warm-up", type=int, default=10, help="initial steps that do not count (10)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (3)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each program (1)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="bfloat16 uses autocast")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile")
    parser.add_argument("--hopmix", type=Path, default=ROOT / "build/bin/hopmix", metavar="FILE", help="the hopmix program (build/bin/hopmix)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
    options = parser.parse_args()
    if not options.hopmix.is_file():
        parser.error(f"--hopmix: '{options.hopmix}' does not exist; build it with `make build`")
    if not options.config.is_file():
        parser.error(f"'{options.config}' is not a file")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: '{options.json.parent}' is not a folder")
    if not 0 <= options.warm_up < options.steps:
        parser.error(f"--warm-up {options.warm_up}: must be at least 0 and below --steps, {options.steps}")
    for name in ("rounds", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")
    return options


def measure(options, work):
    settings = [*options.set, f"threads={options.threads}", f"train.steps={options.steps}",
                f"train.precision={options.precision}", "train.log_every=1", "train.eval_batches=1",
                f"train.checkpoint_every={options.steps}"]  # fmt: skip
    resolved, blocks, attention, given = describe(options.hopmix, options.config, settings, work)
    task, train = resolved["task"], {**resolved["train"], "steps": options.steps}
    torch.set_num_threads(options.threads)
    model = Model(resolved["model"], blocks, attention["embedding"][0], task["length"])
    check_parameters(model, attention)
    text = Text(Path(task["path"]), task["length"], train["batch"])
    peers = {"PyTorch": model}
    if not options.no_compile:
        peers["PyTorch, compiled"] = torch.compile(model)
        peers["PyTorch, compiled"](*text.sample(None)).backward()
    rounds = {name: [] for name in ("hopmix", *peers)}
    for turn in range(options.rounds):
        for name in rounds:
            print(f"\rround {turn + 1} of {options.rounds}: {name:20}", end="", file=sys.stderr, flush=True)
            if name == "hopmix":
                steps = train_hopmix(options.hopmix, options.config, settings, work / f"round{turn}")
            else:
                steps = train_torch(model, peers[name], train, text, seed=turn)
            rounds[name].append(steps)
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr, flush=True)
    tokens = train["batch"] * task["length"]
    results = [
        summary(name, rounds[name], tokens, options.warm_up, count(given if name == "hopmix" else attention)) for name in rounds
    ]
    return results, {"suite": "peers", "machine": {"cpu": processor(), "simd": torch.backends.cpu.get_cpu_capability()},
                     "config": str(options.config), "set": options.set, "threads": options.threads, "precision": options.precision,
                     "tokens_per_step": tokens, "same_model": given == attention, "results": results}  # fmt: skip


def main():
    options = parse()
    try:
        with tempfile.TemporaryDirectory() as work:
            results, everything = measure(options, Path(work))
    except Failure as failure:
        print(f"train_peers.py: {failure}", file=sys.stderr)
        return 2
    same = "the same model" if everything["same_model"] else "attention of the same sizes"
    print(f"{options.config}: {everything['tokens_per_step']} tokens per step, {options.precision}, {options.threads} thread"
          f"{'' if options.threads == 1 else 's'}; PyTorch trains {same}")  # fmt: skip
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
