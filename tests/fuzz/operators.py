#!/usr/bin/env python3
"""Calls random operators with random arguments, for a while.

A valid call must agree with the definition in float64, results and gradients; half of the calls have one argument spoiled, and must
then be a ValueError or a RuntimeError of one line, or agree. Calls run in a process of their own, so one that dies is a finding as well.
A finding prints the seed that makes it again: --seed N --count 1.
"""

import argparse
import dataclasses
import multiprocessing
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

DTYPES = ["float64", "float64", "float32", "bfloat16"]
PATTERNS = ["2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "window(3)", "dense", "strided(3)", "global(2) | window(1)", "fib", "random(2,5)"]


def sizes_of(draw):
    heads = draw.choice([1, 2, 4, 6])
    return dict(
        B=draw.choice([0, 1, 1, 2, 3]), T=draw.choice([0, 1, 2, 5, 17, 63, 64, 65, 100, 130]), H=heads,
        G=draw.choice([g for g in (1, 2, 3, heads) if heads % g == 0]), D=draw.choice([1, 3, 8, 16, 20, 33]), DV=draw.choice([1, 4, 7, 16, 21]),
    )  # fmt: skip


def layout(draw, tensor):
    from common import sliced, transposed

    change = draw.choice([lambda t: t, lambda t: t, transposed, sliced])
    return change(tensor) if tensor.dim() and tensor.is_floating_point() else tensor


def spoil(draw, tensors):
    """One tensor changed so that the call is probably wrong."""
    import torch

    name = draw.choice(list(tensors))
    t = tensors[name]
    changes = [
        lambda t: t[..., :0], lambda t: t[:1], lambda t: t.unsqueeze(0), lambda t: torch.cat([t, t], -1) if t.dim() else t,
        lambda t: t.flatten(), lambda t: t.half(), lambda t: t.long(), lambda t: t.double(), lambda t: t.to("meta"), lambda t: t.to_sparse(),
        lambda t: torch.full_like(t, -5), lambda t: torch.full_like(t, 2**31 - 1) if not t.is_floating_point() else t * float("inf"),
        lambda t: t.narrow(draw.randrange(t.dim()), 0, 1) if t.numel() else t, lambda t: None,
    ]  # fmt: skip
    return {**tensors, name: draw.choice(changes)(t)}


def one_call(seed):
    """None, or what is wrong."""
    import torch

    from common import DTYPES as TYPES
    from registry import OPERATORS, has_gradient

    draw = random.Random(seed)
    op = draw.choice([o for o in OPERATORS])
    dtype = TYPES[draw.choice(DTYPES)]
    sizes = sizes_of(draw)
    options = {"pattern": draw.choice(PATTERNS)} if "pattern" in op.options and op.inputs[1].axis("R") is None else {}
    torch.set_num_threads(draw.choice([1, 2, 3]))
    tensors = {name: layout(draw, t) for name, t in op.make(dtype, **sizes).items()}
    what = f"{op.name} {sizes} {dtype} {options}"
    if draw.random() < 0.5:
        try:
            results = op.call(spoil(draw, tensors), **options)
            [str(r.shape) for r in results]
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            lines = str(error).strip().splitlines()
            return None if lines else f"{what}: an error without a message"
        return None
    try:
        if has_gradient(op) and sizes["B"] * sizes["T"] > 0:
            # Sums over up to 390 rows may round more than those of the shapes in test_reference.py, as may numbers near 0.
            dataclasses.replace(op, roundings=8 * op.roundings, factors=4 * op.factors).compare(tensors, dtype, **options)
        else:  # the references do not know empty tensors
            op.call(tensors, **options)
    except ValueError as error:  # sizes that an operator does not take
        return None if "must" in str(error) and "\n" not in str(error) else f"{what}: {error}"
    except AssertionError as error:
        return f"{what}: {error}"
    return None


def work(first, seconds, count, report):
    end = time.monotonic() + seconds
    seed = first
    while time.monotonic() < end and seed < first + count:
        report.send((seed, None))
        try:
            wrong = one_call(seed)
        except Exception as error:  # noqa: BLE001: whatever it is, it is a finding
            place = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} ({Path(place.filename).name}:{place.lineno})"
        if wrong:
            report.send((seed, wrong))
        seed += 1
    report.send((None, seed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=None, help="the first call; random if not given")
    parser.add_argument("--count", type=int, default=10**9, help="most calls")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    first, findings, end = seed, [], time.monotonic() + options.seconds
    context = multiprocessing.get_context("spawn")
    while time.monotonic() < end and seed < first + options.count:
        receive, send = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(seed, end - time.monotonic(), first + options.count - seed, send))
        worker.start()
        send.close()
        try:
            while True:
                if not receive.poll(60):
                    findings.append((seed, "takes over a minute"))
                    worker.kill()
                    break
                number, wrong = receive.recv()
                if number is None:
                    seed = wrong
                    break
                seed = number
                if wrong:
                    findings.append((seed, wrong))
                    print(f"seed {seed}: {wrong}", flush=True)
        except EOFError:  # the process died in this call
            worker.join()
            findings.append((seed, f"ended by {worker.exitcode}"))
            print(f"seed {seed}: the process ended with {worker.exitcode}", flush=True)
            seed += 1
        worker.join()
    print(f"operators: {seed - first} calls from seed {first}, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
