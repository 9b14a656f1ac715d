#!/usr/bin/env python3
"""Writes docs/performance.md from the JSON of `hopmix bench`. Every number on the page comes from these files.

    scripts/performance_page.py                     converts results/performance*.json to docs/performance.md
    scripts/performance_page.py FILE... --out PAGE  converts these files to PAGE

If a plot (.svg or .png) has the same name as a file, the page includes it.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = ["peers", "table1", "gemm", "operators", "crossover", "long", "train"]


def scaled(value, units):
    """Three digits, in the largest unit in which the number is at least 1."""
    for size, unit in units:
        if value >= size or (size, unit) == units[-1]:
            number = value / size
            return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def time(seconds):
    return scaled(seconds, [(1, "s"), (1e-3, "ms"), (1e-6, "us")])


def size(count):
    return scaled(count, [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")])


def count(number):
    return scaled(number, [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]).strip()


def or_dash(value, form):
    return "-" if value is None else form(value)


def ratio(value):
    return or_dash(value, lambda v: f"{v:.2f}" if v < 10 else f"{v:.1f}" if v < 100 else f"{v:.0f}")


def percent(value):
    return or_dash(value, lambda v: f"{100 * v:.0f}%")


def table(head, rows):
    """A Markdown table without the columns that are empty in every row."""
    kept = [c for c in range(len(head)) if c == 0 or any(row[c] != "-" for row in rows)]
    # Escape bars, which would end a cell.
    line = lambda row: "| " + " | ".join(str(row[c]).replace("|", "\\|") for c in kept) + " |"
    return "\n".join([line(head), "|" + "---|" * len(kept), *map(line, rows)]) + "\n"


def distinct(values):
    return list(dict.fromkeys(values))


def shape(result):
    return f"B {result['batch']}, H {result['heads']}, D {result['width']}, T {result['length']}"


def named_processor(report):
    machine = report.get("machine", {})
    simd = {"AVX3": "AVX-512"}.get(machine.get("simd"), machine.get("simd"))
    return machine.get("cpu", "") + (f" with {simd}" if "cpu" in machine and simd else "")


def setting(report):
    settings = report["settings"]
    threads = settings["threads"]
    words = [settings["dtype"]] if "dtype" in settings else []
    words.append(f"{threads} thread{'s' if threads > 1 else ''}")
    if processor := named_processor(report):
        words.append(processor)
    if "clock" in settings:
        words.append(f"medians of {settings['clock']} time")
    return ", ".join(words)


# ---- The most important ratios of all files --------------------------------------------------------


def found_in(reports, kind, case, length, direction):
    """The seconds of one case in one kind of file, or None."""
    for report, file in reports:
        if file.stem == f"performance{kind}":
            for r in report.get("results", []):
                if (r["case"], r["length"], r["direction"]) == (case, length, direction) and r["batch"] == 1:
                    return r["seconds"]
    return None


def summary(reports):
    """Speed relative to a peer of the same run; bfloat16 is compared across runs."""
    rows = []
    for report, _ in reports:
        if report["suite"] == "peers":
            own, *others = report["results"]
            name = " ".join([Path(report["config"]).stem, *(s for s in report["set"] if "width" in s)])
            against = {r["name"]: ratio(r["seconds"] / own["seconds"]) for r in others}
            rows.append([f"training, `{name}`", ", ".join(against), ", ".join(against.values())])
        if report["suite"] == "table1":
            shares = sorted(r["ratio"] for r in report["results"])
            rows.append(["training, cells of table 1", "a plain PyTorch loop", f"{ratio(shares[0])} to {ratio(shares[-1])}"])
    pairs = [("", "dense_recurrence", "", "sdpa"), ("", "glr_attention 2^k", "", "sdpa"), ("", "glr_attention k^2+1", "", "sdpa")]
    pairs += [("-recurrent", name, "-recurrent", f"eager_{name}") for name in ("linear_attention", "ssd", "gla", "delta_rule", "gated_delta_rule")]
    pairs += [("-recurrent", "kda", "-recurrent", "sdpa")]
    pairs += [("-recurrent-bfloat16", name, "-recurrent", name) for name in ("linear_attention", "ssd", "gla", "delta_rule", "gated_delta_rule")]
    pairs += [("-bfloat16", "dense_recurrence", "", "dense_recurrence")]
    for kind, case, other_kind, other in pairs:
        cells = []
        for direction in ("forward", "forward+backward"):
            own, peer = (found_in(reports, *which, 4096, direction) for which in ((kind, case), (other_kind, other)))
            if own and peer:
                cells.append(ratio(peer / own))
        if cells:
            of = "bfloat16, " if kind.endswith("bfloat16") else ""
            rows.append([f"`{case}`, {of}T 4096", "itself in float32" if other == case else f"`{other}`", ", ".join(cells)])
    for report, _ in reports:
        if report["suite"] == "gemm":
            found = {}
            for r in report["products"]:
                found.setdefault((r["m"], r["n"], r["k"]), {})[r["engine"]] = r["gflops"]
            shares = sorted(engines["highway"] / max(engines.values()) for engines in found.values())
            rows.append(["`highway` products, all shapes below", "the fastest engine", f"{ratio(shares[0])} to {ratio(shares[-1])}, median {ratio(shares[len(shares) // 2])}"])
    text = "## Summary\n\nSpeed relative to a peer; two numbers are forward, then forward and backward.\n\n"
    return text + table(["", "compared with", "times as fast"], rows) + "\n" if rows else ""


# ---- A section for each kind of file --------------------------------------------------------------


def operators(report):
    text = f"## Compared with PyTorch\n\n{setting(report)}.\n\n"
    results = report["results"]
    head = ["", "median", "tokens/s", "over sdpa", "over dense_solve", "useful GB/s", "in", "of loads", "of rows"]
    head += ["memory", "n x n"]
    for direction in distinct(r["direction"] for r in results):
        for where in distinct(shape(r) for r in results):
            rows = [
                [
                    r["case"], time(r["seconds"]), count(r["tokens_per_second"]), ratio(r["over_sdpa"]),
                    ratio(r["over_dense_solve"]), or_dash(r["useful_gb_per_s"], "{:.1f}".format), r["level"] or "-",
                    percent(r["part_of_loads"]), percent(r["part_of_row_loads"]), or_dash(r["extra_bytes"], size),
                    or_dash(r["extra_matrices"], "{:.3f}".format),
                ]
                for r in results
                if r["direction"] == direction and shape(r) == where
            ]  # fmt: skip
            if rows:
                text += f"### {direction}, {where}\n\n{table(head, rows)}\n"
    return text


def crossover(report):
    text = "## Crossover with attention\n\nSpeed relative to `sdpa`, and the length from which the operator stays faster"
    text += f" (-: not up to the longest length). {setting(report)}.\n\n"
    results = report["results"]
    lengths = sorted({r["length"] for r in results})
    faster = {(c["case"], c["direction"]): c["faster_from"] for c in report["crossover"]}
    for direction in distinct(r["direction"] for r in results):
        found = {(r["case"], r["length"]): r["over_sdpa"] for r in results if r["direction"] == direction}
        rows = [
            [case, *(ratio(found.get((case, t))) for t in lengths), or_dash(faster[case, direction], str)]
            for case in distinct(r["case"] for r in results)
            if (case, direction) in faster
        ]
        text += f"### {direction}\n\n{table(['T', *lengths, 'faster from'], rows)}\n"
    return text


def long(report):
    text = f"## Long sequences\n\nForward, with rows computed as they are read; {setting(report)}. Useful GB/s and, in parentheses,"
    text += " its share of the bandwidth of random row loads from the cache that holds k and z.\n\n"
    results = [r for r in report["results"] if r["useful_gb_per_s"] is not None]
    found = {(r["case"], r["length"]): r for r in results}
    cases = distinct(r["case"] for r in results)
    rows = []
    for length in sorted({r["length"] for r in results}):
        here = [found.get((case, length)) for case in cases]
        level = next(r["level"] for r in here if r)
        cells = [f"{r['useful_gb_per_s']:.1f} ({percent(r['part_of_row_loads'])})" if r else "-" for r in here]
        rows.append([length, level, *cells])
    names = [case.removeprefix("long ") for case in cases]
    text += table(["T", "in", *names], rows)
    text += "\nReads and time of one head:\n\n"
    rows = [
        [r["case"].removeprefix("long "), r["length"], r["reads"], time(r["seconds"]), count(r["tokens_per_second"])]
        for r in results
        if r["length"] == max(one["length"] for one in results)
    ]
    return text + table(["", "T", "reads", "time", "tokens/s"], rows) + "\n"


def train(report):
    cells = report["training"]
    text = "## Training\n\n"
    if not cells:
        return text
    first = cells[0]
    text += f"Training steps of the models of table 1 on {first['task']}: {first['batch']} sequences of {first['length']} tokens, "
    text += f"{setting(report)}. Phases in percent of a step.\n\n"
    phases = ["data", "forward", "backward", "clip", "optimizer"]
    rows, shares = [], []
    for cell in cells:
        total = sum(phase["seconds"] for phase in cell["phases"].values())
        parts = [percent(cell["phases"][name]["seconds"] / total) for name in phases]
        rows.append([cell["case"], f"{cell['steps_per_second']:.1f}", count(cell["tokens_per_second"]), *parts])
        flat = [
            (seconds, name, operator or "(outside operators)")
            for name, phase in cell["phases"].items()
            for operator, seconds in phase["operators"].items()
        ]
        for seconds, name, operator in sorted(flat, reverse=True)[:6]:
            shares.append([cell["case"], name, f"`{operator}`", time(seconds), percent(seconds / total)])
    text += table(["", "steps/s", "tokens/s", *phases], rows)
    text += "\nThe most expensive operators:\n\n" + table(["", "phase", "operator", "per step", "share"], shares)
    return text + "\n"


def peers(report):
    settings = " ".join(report["set"])
    threads = report["threads"]
    text = f"## Training compared with PyTorch: `{report['config']}{' ' + settings if settings else ''}`\n\n"
    text += f"`scripts/train_peers.py`, {report['tokens_per_step']} tokens per step, {report['precision']}, "
    text += f"{threads} thread{'s' if threads > 1 else ''}, {named_processor(report)}, measured alternately; PyTorch trains "
    text += "the same model.\n\n" if report["same_model"] else "attention of the same sizes.\n\n"
    own = report["results"][0]["seconds"]
    rows = [
        [r["name"], r["parameters"], time(r["seconds"]), count(r["tokens_per_second"]), "-" if r["name"] == "hopmix" else ratio(r["seconds"] / own), f"{r['last_loss']:.3f}"]
        for r in report["results"]
    ]
    return text + table(["", "parameters", "per step", "tokens/s", "hopmix is faster by", "loss of the last steps"], rows) + "\n"


def table1(report):
    text = "## Cells of table 1 compared with a plain PyTorch loop\n\n"
    text += "`scripts/table1_peers.py`: training on copy, m = 30, 64 sequences of 60 tokens per step, one layer of width 64, 1 thread, "
    text += f"{named_processor(report)}, measured alternately. The plain loop solves the dense system.\n\n"
    rows = [
        [r["name"], *(f"{1 / r['seconds'][name]:.1f}" for name in ("hopmix", "plain")), ratio(r["ratio"])] for r in report["results"]
    ]
    return text + table(["", "hopmix, steps/s", "plain loop, steps/s", "hopmix is faster by"], rows) + "\n"


def gemm(report):
    text = f"## Matrix products\n\nGFlop/s of one float32 product, {setting(report)}; by each engine and by `torch.mm`.\n\n"
    results = report["products"]
    label = lambda r: f"{r['m']} x {r['n']} x {r['k']}"
    engines = distinct(r["engine"] for r in results)
    found = {(label(r), r["engine"]): r["gflops"] for r in results}
    rows = [[shape, *(f"{found[shape, e]:.0f}" for e in engines)] for shape in distinct(map(label, results))]
    return text + table(["m x n x k", *engines], rows) + "\n"


def machine(reports):
    names = {
        "cpu": "processor", "logical_cpus": "logical CPUs", "l1_bytes": "L1", "l2_bytes": "L2", "l3_bytes": "L3",
        "memory_bytes": "memory", "simd": "SIMD of hopmix", "torch_simd": "SIMD of PyTorch", "hopmix": "hopmix",
        "torch": "PyTorch", "compiler": "compiler", "date": "date", "load": "load at the start",
    }  # fmt: skip
    show = lambda key, value: size(value) if key.endswith("_bytes") else f"{value:.2f}" if key == "load" else value
    rows = [[names[key], *(show(key, report["machine"][key]) for report in reports)] for key in names]
    return "## The machine\n\n" + table(["", *(report["suite"] for report in reports)], rows) + "\n"


def levels(report):
    rows = [
        [
            level["level"], or_dash(level["capacity_bytes"], size), size(level["buffer_bytes"]), level["threads"],
            f"{level['in_order_gb_per_s']:.1f}", f"{level['rows_gb_per_s']:.1f}",
        ]
        for level in report["levels"]
    ]  # fmt: skip
    head = ["loads from", "capacity", "buffer", "threads", "GB/s in order", "GB/s of rows"]
    text = "Bandwidth of plain loads with the widest vectors: in order, and of 512-byte rows in random order.\n\n"
    return text + table(head, rows) + "\n"


INTRODUCTION = """\
# Performance

`scripts/performance_page.py` writes this page from the JSON of `hopmix bench`; `make performance` measures everything and writes it.

"""

LEGEND = """\
- **over sdpa**, **over dense_solve**: speed relative to PyTorch's causal `scaled_dot_product_attention`, and to the dense recurrence
  with softmax and `solve_triangular` (one transposed solve in the backward), at the same shape in the same run. The repetitions of all
  cases are interleaved at random in one process.
- **useful GB/s**: one row of k and one of z in float32 per read of the pattern, divided by the time. **of loads**, **of rows**: its share
  of the bandwidth of plain loads, in order and of random rows, from the cache (**in**) that holds k and z of one head. A pattern that
  rereads rows (windows, cached patterns) may exceed 100%.
- **memory**: peak allocation beyond inputs and outputs, counted to the byte; **n x n**: the same in T x T matrices, one per head and
  sequence.

"""


def read(file):
    try:
        report = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        fail(f"{file}: {error}")
    if not isinstance(report, dict) or report.get("suite") not in SUITES:
        fail(f"{file}: not written by hopmix bench")
    if report.get("interrupted"):
        fail(f"{file}: hopmix bench was interrupted; measure again")
    return report


def fail(message):
    print(f"performance_page: {message}", file=sys.stderr)
    sys.exit(2)


def picture(file, out):
    for ending in (".svg", ".png"):
        drawn = file.with_suffix(ending)
        if drawn.exists():
            return f"![{file.stem}]({os.path.relpath(drawn, out.parent)})\n\n"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results/performance*.json if none")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/performance.md", metavar="PAGE")
    given = parser.parse_args()
    files = given.files or sorted(Path("results").glob("performance*.json"))
    reports = sorted(((read(file), file) for file in files), key=lambda pair: SUITES.index(pair[0]["suite"]))
    text = INTRODUCTION
    if reports:
        text += LEGEND
    else:
        text += "There are no measurements in `results/` yet.\n"
    sections = {"peers": peers, "table1": table1, "gemm": gemm, "operators": operators, "crossover": crossover, "long": long, "train": train}
    text += summary(reports)
    for report, file in reports:
        kind = file.stem.removeprefix("performance").strip("-")  # performance-retrieval.json
        section = sections[report["suite"]](report)
        if kind and report["suite"] == "operators":
            section = section.replace("## Compared with PyTorch", f"## Compared with PyTorch: {kind}", 1)
        text += section + picture(file, given.out)
    if reports:
        text += machine([report for report, _ in reports if report["suite"] not in ("peers", "table1", "gemm")])
        with_levels = [report for report, _ in reports if report.get("levels")]
        if with_levels:
            text += levels(with_levels[-1])
        named = ", ".join(f"[{file.name}]({os.path.relpath(file, given.out.parent)})" for _, file in reports)
        text += f"All numbers, with every repetition: {named}.\n"
    temporary = given.out.with_name(given.out.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(given.out)


main()
