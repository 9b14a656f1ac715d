"""`hopmix train` and `hopmix eval`: the contents of a run directory, reproducible numbers, consistent scores."""

import json
import math
import os
import re
from pathlib import Path

import pytest
from program import ROOT, RUN_FILES, TINY, contents, hopmix, metrics, names, refuse, step, succeed, train
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

MULTI_HOP = TINY.replace('"copy"\nm = 6', '"multi_hop_recall"\nchains = 3\nhops = 2\nqueries = 3')


def test_a_run_directory():
    done = hopmix("train", "tiny.toml")
    assert done.returncode == 0
    assert done.stderr.startswith("runs/tiny: copy, ")
    assert "step 12/12" in done.stderr
    assert re.search(r"^accuracy +\d+\.\d\d%  of 96 \(chance 25\.0%\), loss \d", done.stdout)
    assert names("runs/tiny") == RUN_FILES
    assert step("runs/tiny") == 12
    read = metrics("runs/tiny")
    assert [line["step"] for line in read] == [*range(1, 13), 12]
    for line in read[:-1]:
        assert set(line) == {"step", "loss", "accuracy", "lr", "grad_norm"}
        assert all(math.isfinite(value) for value in line.values())
        assert 0.1 < line["loss"] < 5
    assert set(read[-1]["eval"]) == {"loss", "accuracy", "asked"}


@pytest.mark.parametrize("preset", sorted((ROOT / "configs/presets").glob("*.toml")), ids=lambda path: path.stem)
def test_presets_train(preset):
    small = ("task.chains=3", "task.queries=2", "train.steps=2", "train.batch=2", "train.eval_batches=1")
    succeed("train", preset, "--out", "run", *(word for key in small for word in ("--set", key)))
    assert math.isfinite(metrics("run")[-1]["eval"]["loss"])


def test_the_same_seed_and_threads_give_the_same_numbers():
    train("a")
    train("b")
    train("c", "--set", "seed=4")
    assert metrics("a") == metrics("b")
    assert metrics("a") != metrics("c")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


def test_bfloat16_trains():
    train("wide")
    train("narrow", "--set", "train.precision=bfloat16")
    wide, narrow = metrics("wide")[-1]["eval"], metrics("narrow")[-1]["eval"]
    assert narrow["loss"] != wide["loss"], "autocast changed nothing"
    assert abs(narrow["loss"] - wide["loss"]) < 0.02
    assert {tensor.dtype.name for tensor in load_file("narrow/model.safetensors").values()} == {"float32"}


def test_json_and_quiet():
    done = hopmix("train", "tiny.toml", "--quiet", "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout) == metrics("runs/tiny")[-1]["eval"]


def test_a_run_that_exists_is_left_alone():
    train("run")
    before = contents("run")
    taken = "'run' exists: use --resume to continue it, or --out DIR to train elsewhere"
    assert refuse("train", "tiny.toml", "--out", "run", "--quiet") == taken
    assert refuse("train", "run", "--quiet") == taken
    assert contents("run") == before


@pytest.mark.parametrize(
    "setting, difference",
    [
        ("train.steps=13", "train.steps: 12 in run/config.toml, 13 in this config"),
        ("seed=4", "seed: 3 in run/config.toml, 4 in this config"),
        ("model.blocks.0.pattern=fib", "model.blocks.0.pattern: '2^k' in run/config.toml, 'fib' in this config"),
        (
            "model.blocks=[{mixer='glr', pattern='2^k'}, {mixer='attention'}]",
            "model.blocks.1.head_width: absent in run/config.toml, 4 in this config",
        ),
    ],
)
def test_resume_with_another_config_names_the_key(setting, difference):
    train("run")
    before = contents("run")
    message = refuse("train", "tiny.toml", "--out", "run", "--resume", "--quiet", "--set", setting)
    assert message == "cannot resume, the config differs: " + difference
    assert contents("run") == before


def test_resume_of_a_finished_run_changes_nothing():
    train("run")
    before = metrics("run")
    weights = Path("run/model.safetensors").read_bytes()
    assert "accuracy" in succeed("train", "run", "--resume")
    assert metrics("run") == before
    assert Path("run/model.safetensors").read_bytes() == weights


def test_a_gradient_that_is_not_finite_stops_with_advice():
    message = refuse("train", "tiny.toml", "--quiet", "--set", "train.lr=1e30")
    assert re.fullmatch(
        r"step \d+: the gradient is not finite \(loss \S+\); lower train\.lr, or train\.clip", message
    )


def test_a_place_that_cannot_be_written():
    assert refuse("train", "tiny.toml", "--quiet", "--out", "tiny.toml/run") == (
        "cannot create 'tiny.toml/run': Not a directory"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission():
    Path("locked").mkdir(mode=0o555)
    message = refuse("train", "tiny.toml", "--quiet", "--out", "locked/run")
    assert message == "cannot create 'locked/run': Permission denied"


# ---- Measuring ------------------------------------------------------------------------------------


def test_eval_gives_the_score_that_training_wrote_by_slice():
    Path("multi_hop.toml").write_text(MULTI_HOP)
    written = json.loads(train("run", "--json", config="multi_hop.toml"))
    assert list(written["slices"]) == ["depth 0", "depth 1", "depth 2"]
    assert metrics("run")[-1]["eval"] == written
    assert json.loads(succeed("eval", "run", "--json")) == {**written, "step": 12}

    shown = succeed("eval", "run")
    total, *slices = shown.splitlines()
    assert re.fullmatch(rf"accuracy +{written['accuracy']:.2f}%  of {written['asked']} .*", total)
    asked = 0
    for line, (name, percent) in zip(slices, written["slices"].items(), strict=True):
        found = re.fullmatch(rf"  {name} +{percent:.2f}%  of (\d+)", line)
        assert found, line
        asked += int(found[1])
    assert asked == written["asked"]


def test_eval_with_other_settings():
    train("run")
    trained = json.loads(succeed("eval", "run", "--json"))
    more = json.loads(succeed("eval", "run", "--json", "--set", "train.eval_batches=4"))
    assert more["asked"] == 2 * trained["asked"]
    assert json.loads(succeed("eval", "run", "--json", "--set", "seed=9"))["loss"] != trained["loss"]
    assert refuse("eval", "run", "--set", "model.width=8") == (
        "'run/model.safetensors': 'embedding' is [5, 16], but the model has [5, 8]"
    )


PERMUTATION = TINY.replace('"copy"\nm = 6', '"permutation"\ngroup = "S3"\nlength = 8')


def test_eval_at_other_lengths():
    Path("order.toml").write_text(PERMUTATION.replace("width = 16", 'width = 16\npositions = "none"'))
    train("run", config="order.toml")
    longer = json.loads(succeed("eval", "run", "--json", "--set", "task.length=32"))
    assert longer["asked"] == 2 * 8 * 32
    assert set(longer["slices"]) == {f"factors {n}" for n in (1, 2, 4, 8, 16, 32)}

    # The table of positions keeps the length of training.
    Path("order.toml").write_text(PERMUTATION)
    train("learned", config="order.toml")
    succeed("eval", "learned", "--set", "task.length=4")
    assert refuse("eval", "learned", "--set", "task.length=16") == (
        "position 15: the model's table of learned positions holds 8 (model.max_length); "
        'use positions = "rope" or "none" for longer sequences'
    )


def test_eval_of_a_mix_of_sizes():
    """A batch has one size; a run trained on some sizes can be evaluated on others."""
    mqar = TINY.replace('"copy"\nm = 6', '"mqar"\nvocabulary = 64\nsizes = "16:4*2, 32:8"')
    Path("mqar.toml").write_text(mqar.replace("width = 16", 'width = 16\npositions = "none"'))
    written = json.loads(train("run", "--json", "--set", "train.eval_batches=16", config="mqar.toml"))
    assert set(written["slices"]) == {"pairs 4", "pairs 8"}
    other = json.loads(succeed("eval", "run", "--json", "--set", "task.sizes=64:16"))
    assert set(other["slices"]) == {"pairs 16"}
    assert other["asked"] == 16 * 8 * 16


# Of TINY: 5 tokens, 12 positions, width 16, 4 heads, an MLP of 2 x 16; with token shift a layer reads 2 x 16.
SHAPES = {
    "embedding": (5, 16),
    "positions": (12, 16),
    "blocks_0.mixer_norm.weight": (16,),
    "blocks_0.mixer.qkv.weight": (3 * 16, 2 * 16),
    "blocks_0.mixer.gates.weight": (3 * 4, 2 * 16),
    "blocks_0.mixer.gates.bias": (3 * 4,),
    "blocks_0.mixer.out.weight": (16, 16),
    "blocks_0.mlp_norm.weight": (16,),
    "blocks_0.up.weight": (32, 16),
    "blocks_0.up.bias": (32,),
    "blocks_0.down.weight": (16, 32),
    "blocks_0.down.bias": (16,),
    "norm.weight": (16,),
    "head.weight": (5, 16),
    "head.bias": (5,),
}


def test_safetensors_interoperate_with_the_python_package():
    train("run")
    file = Path("run/model.safetensors")
    with safe_open(file, framework="np") as opened:
        metadata = opened.metadata()
    assert metadata == {"step": "12", "format": "pt"}
    weights = load_file(file)
    assert {name: tensor.shape for name, tensor in weights.items()} == SHAPES
    assert {tensor.dtype.name for tensor in weights.values()} == {"float32"}
    moments = load_file("run/optimizer.safetensors")
    assert {name: tensor.shape for name, tensor in moments.items()} == {
        f"{name}.{moment}": shape for name, shape in SHAPES.items() for moment in ("exp_avg", "exp_avg_sq")
    }

    before = succeed("eval", "run", "--json")
    save_file(weights, file, metadata=metadata)
    assert succeed("eval", "run", "--json") == before
    # And the numbers in it count: a head of zeros calls all 5 tokens equally likely.
    for name in ("head.weight", "head.bias"):
        weights[name] *= 0
    save_file(weights, file, metadata=metadata)
    assert json.loads(succeed("eval", "run", "--json"))["loss"] == pytest.approx(math.log(5), abs=1e-6)
