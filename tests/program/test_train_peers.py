"""scripts/train_peers.py: both sides train the same model. Tests do not check speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from program import ENVIRONMENT, HOPMIX, PATIENCE, ROOT

CONFIG = """\
[task]
name = "text"
path = "text.txt"
length = 24

[model]
width = 16
heads = 2
positions = "rope"

[[model.blocks]]
mixer = "attention"
repeat = 2

[train]
batch = 4
lr = 1e-2
warmup = 2
"""


@pytest.fixture(autouse=True)
def files(folder):
    Path("config.toml").write_text(CONFIG)
    Path("text.txt").write_text("the same words again and again, " * 60)


def peers(*arguments):
    command = [sys.executable, ROOT / "scripts/train_peers.py", *arguments, "--hopmix", HOPMIX, "--no-compile"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.token_shift=false", "model.mlp=0"],
        ["model.positions=learned", "model.max_length=30"],
        ["train.clip=0.0", "model.heads=4", "model.blocks.0.repeat=1"],
    ],
)
def test_both_train_the_same_model(settings):
    given = [word for setting in settings for word in ("--set", setting)]
    done = peers("config.toml", *given, "--steps", "30", "--warm-up", "1", "--rounds", "1", "--json", "p.json")
    assert done.returncode == 0, done.stderr
    report = json.loads(Path("p.json").read_text())
    own, torch = report["results"]
    assert report["same_model"] and report["tokens_per_step"] == 96
    assert (own["name"], torch["name"]) == ("hopmix", "PyTorch") and own["parameters"] == torch["parameters"]
    assert own["first_loss"] == pytest.approx(torch["first_loss"], rel=0.1)
    # Other first weights and other windows: as low, not the same.
    assert own["last_loss"] == pytest.approx(torch["last_loss"], rel=0.3) and own["last_loss"] < 0.6 * own["first_loss"]
    assert all(r["tokens_per_second"] == pytest.approx(96 / r["seconds"]) for r in report["results"])


def test_another_mixer_is_beside_attention_of_its_sizes():
    done = peers("config.toml", "--set", "model.blocks=[{mixer='glr'}]", "--steps", "2", "--warm-up", "0", "--rounds", "1", "--json", "p.json")
    assert done.returncode == 0, done.stderr
    report = json.loads(Path("p.json").read_text())
    assert not report["same_model"] and "PyTorch trains attention of the same sizes" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none.toml"], "'none.toml' is not a file"),
        (["config.toml", "--warm-up", "40"], "--warm-up 40: must be at least 0 and below --steps, 40"),
        (["config.toml", "--rounds", "0"], "--rounds 0: must be at least 1"),
        (["config.toml", "--json", "no/p.json"], "--json: 'no' is not a folder"),
        (["tiny.toml"], "'tiny.toml' must use the task text with bytes as tokens and without documents, which is what the peers support"),
        (["config.toml", "--set", "model.wdith=3"], "hopmix: unknown key 'model.wdith'"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    done = peers(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
