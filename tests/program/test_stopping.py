"""Kill, Ctrl-C, a full disk, damaged files: what is lost, what is reported, and that resuming gives the same numbers."""

import fcntl
import json
import math
import os
import pty
import random
import re
import resource
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest
from program import ENVIRONMENT, HOPMIX, PATIENCE, RUN_FILES, TINY
from program import lines, metrics, names, refuse, start, step, succeed, train, wait_until
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

LONG = ["--set", "train.steps=200"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Metrics of 200 uninterrupted steps."""
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "tiny.toml").write_text(TINY)
    succeed("train", "tiny.toml", "--out", "run", "--quiet", *LONG, cwd=folder)
    read = metrics(folder / "run")
    assert [line["step"] for line in read] == [*range(1, 201), 200] and "eval" in read[-1]
    return read


def test_killed_at_any_moment_and_resumed_gives_the_same_numbers(unbroken):
    arguments = ["train", "tiny.toml", "--out", "run", "--quiet", "--resume", *LONG]
    arguments += ["--set", "train.checkpoint_every=1"]
    chance = random.Random(0)
    kills = torn = 0
    # At least six kills, and more until one has fallen into the middle of a checkpoint.
    while (kills < 6 or torn == 0) and kills < 40:
        process = start(*arguments)
        before = len(lines("run"))
        if kills == 0:
            moment = Path("run/config.toml").exists
        elif kills % 2:
            moment = lambda: len(lines("run")) > before + 1 and Path("run/optimizer.safetensors.next.tmp").exists()
        else:
            moment = lambda: len(lines("run")) > before + 1
        alive = wait_until(moment, process)
        time.sleep(chance.random() * 0.01 * (1 - kills % 2))
        process.kill()
        process.communicate()
        if not alive or process.returncode == 0:
            break
        kills += 1
        torn += not names("run") <= RUN_FILES
    assert kills >= 3 and torn >= 1
    succeed(*arguments)
    assert metrics("run") == unbroken
    assert names("run") == RUN_FILES


def test_a_closed_terminal_saves():
    """The kernel and the shell may both send SIGHUP; the second must not end the save."""
    ours, terminal = pty.openpty()
    arguments = ["train", "tiny.toml", "--out", "run", "--set", "train.steps=100000"]
    process = subprocess.Popen(
        [HOPMIX, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=ENVIRONMENT,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(terminal)
    assert wait_until(lambda: len(lines("run")) > 2, process)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=PATIENCE) == 130
    assert step("run") > 2 and names("run") == RUN_FILES


def test_nohup_is_respected():
    process = subprocess.Popen(
        [HOPMIX, "train", "tiny.toml", "--out", "run", "--quiet", *LONG],
        stdout=subprocess.DEVNULL, env=ENVIRONMENT, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert wait_until(lambda: len(lines("run")) > 2, process)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=PATIENCE) == 0
    assert step("run") == 200


def test_a_step_that_overflows_keeps_the_last_checkpoint():
    train("run", "--set", "train.steps=4")
    weights = Path("run/model.safetensors").read_bytes()
    message = refuse("train", "tiny.toml", "--out", "far", "--quiet", "--set", "train.lr=1e39", "--set", "train.checkpoint_every=1")
    assert re.fullmatch(
        r"step 1: '\S+' has a number that is not finite, so no checkpoint was saved; lower train.lr, or train.clip", message
    )
    assert not Path("far/state.json").exists()
    assert Path("run/model.safetensors").read_bytes() == weights


def test_weights_that_are_no_numbers_are_an_error():
    train("run")
    file = Path("run/model.safetensors")
    with safe_open(file, framework="np") as opened:
        metadata = opened.metadata()
    weights = load_file(file)
    for value in (math.nan, math.inf):
        weights["head.bias"][2] = value
        save_file(weights, file, metadata=metadata)
        expected = "'run/model.safetensors': 'head.bias' has a number that is not finite"
        assert refuse("eval", "run") == expected
        assert refuse("train", "run", "--resume", "--quiet") == expected
    weights["head.bias"][2] = 0
    weights["head.weight"][:] = 3e38  # finite, but not its logits
    save_file(weights, file, metadata=metadata)
    assert refuse("eval", "run").startswith("the loss is not finite (")


def test_a_tensor_of_another_type_is_refused():
    train("run")
    file = Path("run/model.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1))
    message = refuse("eval", "run")
    assert re.fullmatch(r"'run/model.safetensors': '\S+' is Int, but the model has Float", message)


def test_killed_before_anything_was_written():
    Path("run").mkdir()
    Path("run/config.toml.tmp").write_text("seed = ")
    train("run")
    assert names("run") == RUN_FILES


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_saves_and_prints_the_command_that_goes_on(number, unbroken):
    process = start("train", "tiny.toml", "--out", "runs/my 'first' run", *LONG)
    run = "runs/my 'first' run"
    assert wait_until(lambda: len(lines(run)) > 2, process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert stdout == ""
    said = stderr.splitlines()[-2:]
    assert said[0] == f"stopped and saved at step {step(run)}; continue with"
    assert 2 < step(run) < 200
    assert names(run) == RUN_FILES

    Path("bin").mkdir()
    Path("bin/hopmix").symlink_to(HOPMIX)
    path = f"{Path('bin').resolve()}:{os.environ['PATH']}"
    subprocess.run(said[1], shell=True, check=True, capture_output=True, env={**ENVIRONMENT, "PATH": path})
    assert metrics(run) == unbroken


def stopped_run(run):
    """Stops a run of 200 steps with Ctrl-C; returns the step it reached."""
    process = start("train", "tiny.toml", "--out", run, "--quiet", *LONG)
    assert wait_until(lambda: len(lines(run)) > 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    return step(run)


def full_disk(limit):
    """Simulates a full disk with a limit on file size: writes past it fail."""

    def prepare():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return {"preexec_fn": prepare}


def test_a_full_disk_while_saving_keeps_the_old_checkpoint(unbroken):
    at = stopped_run("run")
    size = {name: Path("run", name).stat().st_size for name in RUN_FILES}
    between = (size["model.safetensors"] + size["optimizer.safetensors"]) // 2
    assert size["metrics.jsonl"] < between - 2000, "the run went on for too long to fail in the optimizer's file"
    resume = ["train", "run", "--resume", "--quiet"]
    assert refuse(*resume, **full_disk(between)) == (
        "cannot write 'run/optimizer.safetensors.next': File too large"
    )
    assert step("run") == at
    assert json.loads(succeed("eval", "run", "--json"))["step"] == at
    assert refuse(*resume, **full_disk(size["metrics.jsonl"] + 10)) == (
        "cannot write 'run/metrics.jsonl': File too large"
    )
    assert step("run") == at
    succeed(*resume)
    assert metrics("run") == unbroken
    assert names("run") == RUN_FILES


def test_a_full_disk_before_the_first_step():
    arguments = ["train", "tiny.toml", "--out", "run", "--quiet"]
    assert refuse(*arguments, **full_disk(100)) == "cannot write 'run/config.toml': File too large"
    succeed(*arguments)
    assert names("run") == RUN_FILES


@pytest.mark.parametrize("command", [["eval"], ["train", "--resume", "--quiet"]])
def test_missing_and_damaged_checkpoints_are_one_line(command):
    train("run")
    fresh = {name: Path("run", name).read_bytes() for name in RUN_FILES}
    stem = "model" if command == ["eval"] else "optimizer"
    file = f"run/{stem}.safetensors"

    def message(name, change):
        """The error after changing one file; None removes it."""
        for restored in RUN_FILES:
            Path("run", restored).write_bytes(fresh[restored])
        changed = change(fresh[name])
        Path("run", name).unlink() if changed is None else Path("run", name).write_bytes(changed)
        return refuse(*command, "run")

    tensors = f"{stem}.safetensors"
    assert message(tensors, lambda _: None) == f"cannot read '{file}': No such file or directory"
    for cut in (lambda b: b[:-5], lambda b: b[:100], lambda b: b[:7], lambda b: b""):
        assert f"'{file}'" in message(tensors, cut)
    assert f"'{file}'" in message(tensors, lambda b: b[:8] + b"#" + b[9:])
    assert f"'{file}'" in message(tensors, lambda b: b"\xff" * 8 + b[8:])
    assert message("state.json", lambda b: b'{"st') == "'run/state.json' is damaged: it must hold {\"step\": N}"
    for number in (b"4.5", b"12.0", b"-1", b"100000000000000000012", b"null"):
        damaged = message("state.json", lambda b: b'{"step": ' + number + b"}")
        assert damaged == "'run/state.json' is damaged: it must hold {\"step\": N}"
    assert message("state.json", lambda b: b'{"step": 9}') == (
        "'run/model.safetensors' is not from step 9, the step in state.json"
    )
    assert message("config.toml", lambda _: None).endswith("config.toml is missing")
    if command == ["eval"]:
        assert message("state.json", lambda _: None) == "'run' holds no checkpoint (state.json is missing)"
