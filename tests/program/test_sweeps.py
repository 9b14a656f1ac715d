"""`hopmix reproduce`: trains a table of runs once, can be stopped and continued, and names failed runs."""

import fcntl
import json
import math
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from program import ENVIRONMENT, HOPMIX, PATIENCE, contents, hopmix, lines, metrics, names, refuse, start, step, succeed, wait_until

SWEEP = """\
title = "Two by two"

[base]
threads = 1
[base.model]
width = 16
[base.train]
steps = 5
batch = 4
eval_batches = 1

[[columns]]
name = "copy"
task = { name = "copy", m = 6 }

[[columns]]
name = "recall"
task = { name = "associative_recall", chains = 4, queries = 2 }

[[rows]]
name = "attention"
blocks = [{ mixer = "attention" }]

[[rows]]
name = "2^k"
blocks = [{ mixer = "glr", pattern = "2^k" }]
paper = { copy = 92.63 }
"""


@pytest.fixture(autouse=True)
def sweep_file(folder):
    Path("sweep.toml").write_text(SWEEP)


def test_reproduce_fills_a_table_once():
    arguments = ["reproduce", "sweep.toml", "--jobs", "2", "--seeds", "2"]
    shown = succeed(*arguments)
    assert shown.startswith("Two by two\n\nstructure ")
    assert re.search(r"^2\^k +\d+\.\d\d ±\d+\.\d\d \(92\.63\) ", shown, flags=re.M)
    assert shown.endswith("Written: results/sweep.json, .svg, .png\n")
    assert names("results") == {"sweep.json", "sweep.svg", "sweep.png"}
    assert b"<svg" in Path("results/sweep.svg").read_bytes()
    assert Path("results/sweep.png").read_bytes().startswith(b"\x89PNG")

    table = json.loads(Path("results/sweep.json").read_text())
    assert [row["name"] for row in table["rows"]] == ["attention", "2^k"]
    for row in table["rows"]:
        for column, cell in row["columns"].items():
            folder = Path("runs/sweep", column, row["name"].replace("^", "_"))
            finals = [metrics(folder / f"seed-{seed}")[-1]["eval"]["accuracy"] for seed in (0, 1)]
            assert cell["accuracy"] == finals
            assert cell["mean"] == pytest.approx(sum(finals) / 2)
            assert cell["deviation"] == pytest.approx(abs(finals[0] - finals[1]) / math.sqrt(2))
    assert table["rows"][1]["columns"]["copy"]["paper"] == 92.63

    before = contents("runs")
    again = hopmix(*arguments)
    assert again.returncode == 0
    assert again.stderr == "Two by two: 8 runs, 8 already done\n"
    assert contents("runs") == before, "nothing is trained twice"
    assert json.loads(Path("results/sweep.json").read_text()) == table
    assert json.loads(succeed(*arguments, "--no-plot", "--json")) == table

    assert refuse(*arguments, "--set", "train.steps=6") == (
        "'runs/sweep/copy/attention/seed-0' was created with a different config (train.steps: 5 in "
        "runs/sweep/copy/attention/seed-0/config.toml, 6 in this table); remove it, or choose another folder with --runs"
    )
    assert contents("runs") == before


EVALUATION = """
[[evaluations]]
name = "asked once"
row = "attention"
set = ["task.queries=1"]
"""


def test_trained_models_are_evaluated_otherwise():
    text = SWEEP.replace('[[columns]]\nname = "copy"\ntask = { name = "copy", m = 6 }\n', "").replace("{ copy =", "{ recall =")
    Path("second.toml").write_text(text + EVALUATION)
    shown = succeed("reproduce", "second.toml", "--no-plot")
    assert re.search(r"evaluated otherwise\n\nstructure .*\nasked once +\d+\.\d\d\n", shown, flags=re.S)
    table = json.loads(Path("results/second.json").read_text())
    assert [row["name"] for row in table["evaluations"]] == ["asked once"]
    run = "runs/second/recall/attention/seed-0"
    alone = json.loads(succeed("eval", run, "--json", "--set", "task.queries=1"))
    assert table["evaluations"][0]["columns"]["recall"]["accuracy"] == [alone["accuracy"]]

    Path("second.toml").write_text(text + EVALUATION.replace("task.queries", "task.querys"))
    message = refuse("reproduce", "second.toml", "--runs", "other")
    assert message == "other/second/recall/attention/seed-0: unknown key 'task.querys'; did you mean 'queries'?"
    Path("second.toml").write_text(text + EVALUATION.replace("task.queries=1", "model.width=8"))
    message = refuse("reproduce", "second.toml", "--runs", "other")
    assert message == (
        "evaluations.0.set: describes a different model than 'attention' trains; its weights would not fit"
    )
    assert not Path("other").exists(), "a mistake shows before anything is trained"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["sweep.toml", "--draws", "2"], "--draws does not apply to sweep.toml: it is for theorem"),
        (["theorem", "--seeds", "2"], "--seeds does not apply to theorem: it trains nothing"),
        (["sweep.toml", "--set", "seed=1"], "--set seed=1: use --seeds to choose the number of seeds"),
        (
            ["sweep.toml", "--set", "threads=2"],
            "--set threads=2: each run uses one thread; use --jobs to run several at once",
        ),
        (["propositions", "--seeds", "2"], "--seeds does not apply to propositions: it trains nothing"),
        (["propositions", "--no-plot"], "--no-plot does not apply to propositions: it trains nothing"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(arguments, message):
    assert refuse("reproduce", *arguments) == message


def test_a_cell_that_cannot_be_is_named_before_anything_is_trained():
    Path("sweep.toml").write_text(SWEEP.replace('"2^k" }]', '"2^" }]'))
    assert refuse("reproduce", "sweep.toml") == (
        "runs/sweep/copy/2_k/seed-0: model.blocks.0.pattern: pattern '2^': expression at character 3: "
        "unexpected end of expression"
    )
    assert not list(Path("runs").rglob("metrics.jsonl"))


def test_a_cell_that_fails_is_named():
    done = hopmix("reproduce", "sweep.toml", "--no-plot", "--set", "train.lr=1e30")
    assert (done.returncode, done.stdout) == (2, "")
    progress, message = done.stderr.splitlines()
    assert progress == "Two by two: 4 runs, 0 already done"
    assert re.fullmatch(
        r"hopmix: runs/sweep/copy/attention/seed-0: step \d: the gradient is not finite \(loss \S+\); "
        r"lower train\.lr, or train\.clip",
        message,
    )


def test_a_place_that_cannot_be_written():
    message = refuse("reproduce", "sweep.toml", "--runs", "tiny.toml")
    assert message == "'tiny.toml/sweep/copy/attention': Not a directory"


def screen(written, width):
    """The lines a terminal shows after printing `written`."""
    rows, row, column, wraps = [""], 0, 0, True
    for token in re.findall(r"\x1b\[\??\d*[A-Za-z]|[\s\S]", written):
        if token in ("\x1b[?7l", "\x1b[?7h"):
            wraps = token.endswith("h")
        elif token == "\x1b[J":
            rows = [*rows[:row], rows[row][:column]]
        elif token.startswith("\x1b"):
            assert token.endswith("A"), token
            row -= int(token[2:-1])
        elif token == "\r":
            column = 0
        else:
            if token == "\n" or (column == width and wraps):
                row, column = row + 1, column if token == "\n" else 0
                rows += [""] * (row + 1 - len(rows))
            if token != "\n":
                column = min(column, width - 1)
                rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + 1 :]
                column += 1
    return rows


def test_the_live_table_leaves_no_trace_on_a_narrow_terminal():
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    process = subprocess.Popen(
        [HOPMIX, "reproduce", "sweep.toml", "--no-plot"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env=ENVIRONMENT,
    )
    os.close(terminal)
    written = b""
    try:
        while piece := os.read(ours, 1 << 16):
            written += piece
    except OSError:  # how Linux tells the end of a terminal
        pass
    os.close(ours)
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    drawn = written.decode()
    assert drawn.count("Two by two") > 1, "drawn once only"
    assert max(map(len, stdout.splitlines())) > 40, "nothing here is too wide"
    assert screen(drawn, 40) == [""]


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_a_cell_that_is_killed_is_named():
    process = start("reproduce", "sweep.toml", "--no-plot", "--set", "train.steps=100000")
    run = "runs/sweep/copy/attention/seed-0"
    assert wait_until(lambda: len(lines(run)) > 0, process)
    [child] = children(process)
    os.kill(child, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (2, "")
    assert stderr.splitlines()[-1] == f"hopmix: {run}: killed by signal 9"


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_children_save_and_end_when_reproduce_is_killed():
    process = start("reproduce", "sweep.toml", "--no-plot", "--jobs", "2", "--set", "train.steps=100000")
    runs = [f"runs/sweep/copy/{row}/seed-0" for row in ("attention", "2_k")]
    assert wait_until(lambda: all(len(lines(run)) > 0 for run in runs), process)
    trained = children(process)
    assert len(trained) == 2
    process.kill()
    process.communicate()
    end = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in trained):
        assert time.monotonic() < end, "a child trains on"
        time.sleep(0.01)
    assert all(step(run) > 0 for run in runs)


def test_reproduce_stops_when_its_terminal_closes():
    process = start("reproduce", "sweep.toml", "--no-plot", "--set", "train.steps=100000")
    run = "runs/sweep/copy/attention/seed-0"
    assert wait_until(lambda: len(lines(run)) > 0, process)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert step(run) > 0


def test_two_at_once_share_no_file():
    """Both write the same files; neither trips over the temporary files of the other."""
    arguments = ["reproduce", "sweep.toml", "--no-plot", "--json"]
    succeed(*arguments, "--results", "whole")
    both = [start(*arguments, "--results", "results") for _ in range(2)]
    done = [process.communicate(timeout=PATIENCE) for process in both]
    assert [process.returncode for process in both] == [0, 0], done
    assert done[0][0] == done[1][0]
    assert names("results") == {"sweep.json"}


def test_a_cell_whose_text_changed_is_not_reused():
    Path("text").write_text("the king says no\n" * 200)
    sweep = SWEEP.replace('{ name = "copy", m = 6 }', '{ name = "text", path = "text", length = 12 }')
    Path("sweep.toml").write_text(sweep)
    succeed("reproduce", "sweep.toml", "--no-plot")
    Path("text").write_text("the king says yes\n" * 200)
    message = refuse("reproduce", "sweep.toml", "--no-plot")
    assert message.startswith("task.path = 'text' has changed since 'runs/sweep/copy/attention/seed-0' was started: it had 3400 bytes")


def test_reproduce_goes_on_after_an_interrupt():
    arguments = ["reproduce", "sweep.toml", "--no-plot", "--jobs", "2", "--set", "train.steps=150"]
    arguments += ["--set", "train.log_every=1"]
    whole = json.loads(succeed(*arguments, "--json", "--runs", "whole", "--results", "whole"))
    process = start(*arguments)
    first = [f"runs/sweep/copy/{row}/seed-0" for row in ("attention", "2_k")]
    assert wait_until(lambda: all(len(lines(run)) > 2 for run in first), process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "stopped; every run was saved. Run the same command to continue."
    assert not Path("results/sweep.json").exists()
    assert json.loads(succeed(*arguments, "--json")) == whole
