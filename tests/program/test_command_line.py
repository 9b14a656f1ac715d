"""Help, versions, and errors on the command line and in configs: one line, exit code 2."""

import json
import re
from pathlib import Path

import pytest
from program import ENVIRONMENT, TINY, metrics, refuse, step, succeed, train


def test_help_of_every_command_has_examples():
    listed = succeed("--help").split("Subcommands:\n")[1].split("\n\n")[0]
    commands = re.findall(r"^  ([a-z]+) ", listed, flags=re.M)
    assert {"pattern", "mixers", "train", "eval", "reproduce", "info"} <= set(commands)
    for command in commands:
        text = succeed(command, "--help")
        examples = text.split("Example", 1)
        assert len(examples) == 2, command
        assert f"\n  hopmix {command}" in examples[1], command


def test_version_and_info():
    version = succeed("--version").strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    shown = dict(line.split(maxsplit=1) for line in succeed("info").splitlines())
    assert shown["hopmix"] == version
    assert shown["threads"] == "1"


def engines():
    """(the engine in use, the others)."""
    shown = dict(line.split(maxsplit=1) for line in succeed("info").splitlines())["products"]
    used, *rest = re.fullmatch(r"(\w+)(?: \(also ([\w, ]+); HOPMIX_GEMM names another\))?", shown).groups()
    return used, rest[0].split(", ") if rest[0] else []


def test_info_names_the_engine_of_products(monkeypatch):
    monkeypatch.delitem(ENVIRONMENT, "HOPMIX_GEMM", raising=False)
    used, others = engines()
    assert "highway" in [used, *others]
    for name in others:
        monkeypatch.setitem(ENVIRONMENT, "HOPMIX_GEMM", name)
        now, rest = engines()
        assert now == name and {now, *rest} == {used, *others}


# train reports it at the first product, before the run takes a step.
@pytest.mark.parametrize("command", [["info"], ["train", "tiny.toml", "--quiet", "--set", "model.blocks=[{mixer='gla'}]"]])
def test_an_unknown_engine_is_one_line(command, monkeypatch):
    monkeypatch.delitem(ENVIRONMENT, "HOPMIX_GEMM", raising=False)
    used, others = engines()
    monkeypatch.setitem(ENVIRONMENT, "HOPMIX_GEMM", "blas")
    known = sorted([used, *others])
    message = refuse(*command)
    assert message.startswith("HOPMIX_GEMM = 'blas': must be one of ")
    assert sorted(message.split("must be one of ")[1].split(", ")) == known


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "A subcommand is required"),
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train"], "config is required"),
        (["train", "tiny.toml", "--rseume"], "The following argument was not expected: --rseume"),
        (["pattern"], "SPEC is required"),
        (["pattern", "windw(3)"], "pattern 'windw(3)': unknown name 'windw' at character 1; did you mean 'window'?"),
        (["pattern", "window(0)"], "pattern 'window(0)': argument at character 8: 0 must be at least 1"),
        (["pattern", "window("], "pattern 'window(': an argument is missing at character 8"),
        (["pattern", "2^k", "-n", "-1"], "-n -1 must be from 0 to 2147483647"),
        (["pattern", "2^k", "--plot", "p.gif"], "plot file 'p.gif' must end in .svg or .png"),
        (["pattern", "2^k", "--csr", "no/p.mtx"], "cannot write 'no/p.mtx': No such file or directory"),
        (["eval", "nowhere"], "'nowhere' is not a run directory"),
        (["eval", "tiny.toml"], "'tiny.toml' is not a run directory"),
        (["eval", "."], "'.' is not a run directory: config.toml is missing"),
        (["train", "."], "'.' is not a run directory: config.toml is missing"),
        (["reproduce", "tabel1"], "unknown reproduction 'tabel1'; did you mean 'table1'?"),
        (["reproduce", "no.toml"], "cannot read 'no.toml': No such file or directory"),
        (["reproduce", "sweep.toml", "--jobs", "0"], "--jobs: Value 0 not in range 1 to 1024"),
        (["reproduce", "tiny.toml"], "unknown key 'model'; known: title, note, reference, base, columns, rows, evaluations"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments, message):
    assert refuse(*arguments) == message


def test_an_option_of_one_value_leaves_the_next_word():
    succeed("train", "--set", "train.steps=3", "tiny.toml", "--out", "run", "--quiet")
    assert step("run") == 3
    assert succeed("eval", "--set", "train.eval_batches=1", "run", "--json") == succeed(
        "eval", "run", "--json", "--set", "train.eval_batches=1"
    )
    message = refuse("generate", "--stop", "x", "run", "--prompt", "y")
    assert message == "'run' was trained on the task 'copy': must be a run of the task 'text'"
    assert refuse("bench", "--length", "64", "no such", "--repetitions", "1").startswith("unknown benchmark 'no such'")


@pytest.mark.parametrize(
    "arguments, option",
    [
        (["train", "tiny.toml", "--out", ""], "--out"),
        (["train", ""], "config"),
        (["eval", ""], "run"),
        (["reproduce", "demo", "--runs", ""], "--runs"),
        (["reproduce", "demo", "--results", ""], "--results"),
        (["tokenizer", "train", "--input", "tiny.toml", "--output", ""], "--output"),
        (["pattern", "2^k", "--csr", ""], "--csr"),
        (["bench", "--json", ""], "--json"),
    ],
)
def test_an_empty_name_is_refused_at_once(arguments, option):
    assert refuse(*arguments) == f"{option}: is '', but must name a file or a folder"
    assert {path.name for path in Path(".").iterdir()} == {"tiny.toml"}


@pytest.mark.parametrize("value", ["2024-01-01", "123", "1e5", "true"])
def test_a_string_that_looks_like_another_value(value):
    message = refuse("train", "tiny.toml", "--set", "task.name=text", "--set", f"task.path={value}")
    assert message.startswith("task.path = ") and message.endswith(
        """: must be a string: put it in quotes, path = "...", or in a shell, --set 'task.path="..."'"""
    )


@pytest.mark.parametrize(
    "key, value",
    [
        ("model.blocks.0.repeat", "100000000000"),
        ("model.width", "100000000000"),
        ("model.width", "9223372036854775807"),
        ("model.mlp", "9223372036854775807"),
        ("model.max_length", "9223372036854775807"),
        ("train.batch", "9223372036854775807"),
        ("train.batch", "100000000000"),
        ("task.m", "100000000000"),
    ],
)
def test_a_size_too_large_names_its_key_and_makes_nothing(key, value):
    message = refuse("train", "tiny.toml", "--set", f"{key}={value}")
    assert message.startswith(f"{key} = {value}: ")
    assert not Path("runs").exists()


def test_a_refused_config_leaves_nothing_in_the_way():
    message = refuse("train", "tiny.toml", "--set", "model.max_length=4", "--out", "run", "--quiet")
    assert message.startswith("position 11: the model's table of learned positions holds 4 (model.max_length)")
    assert not Path("run").exists()
    train("run")


def test_mixers_as_json_names_every_mixer():
    listed = json.loads(succeed("mixers", "--json"))
    known = refuse("train", "tiny.toml", "--set", "model.blocks.0.mixer=").split("known: ")[1].split(", ")
    assert [mixer["name"] for mixer in listed] == known
    table = succeed("mixers")
    for mixer in listed:
        assert mixer["equation"] and mixer["reads"] and mixer["cache"] and mixer["source"]
        assert mixer["state_bytes"] > 0
        assert f"\n{mixer['name']} " in table


# ---- In a config ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("seed", "sed", "unknown key 'sed'; did you mean 'seed'?"),
        ("m = 6", "m = 6\nsymbol = 4", "unknown key 'task.symbol'; did you mean 'symbols'?"),
        ("width", "widht", "unknown key 'model.widht'; did you mean 'width'?"),
        ("pattern", "patern", "unknown key 'model.blocks.0.patern'; did you mean 'pattern'?"),
        ("batch", "bacth", "unknown key 'train.bacth'; did you mean 'batch'?"),
        ("steps = 12", 'steps = "12"', "train.steps = '12': must be an integer"),
        ("steps = 12", "steps = 1.5", "train.steps = 1.5: must be an integer"),
        ("steps = 12", "steps = 0", "train.steps = 0: must be at least 1"),
        ("steps = 12", "lr = inf", "train.lr = inf: must be finite"),
        ("steps = 12", "lr = nan", "train.lr = nan: must be above 0"),
        ("steps = 12", "lr = true", "train.lr = true: must be a number"),
        ("threads = 1", "threads = 4294967297", "threads = 4294967297: must be at most 1024"),
        (
            "[model]",
            '[model]\npositions = "rope"\nmax_length = 9',
            "model.max_length = 9: applies only to learned positions, not to rope",
        ),
        ("seed = 3", "seed = { a = 1 }", "seed = { a = 1 }: must be an integer"),
        ("seed = 3", 'seed = """\n3\n4"""', "seed = '''3 4''': must be an integer"),
        ("[model]\nwidth = 16", "[model]\nwidth = 15", "model.blocks.0: heads = 4: must divide the width, 15"),
        ('"copy"', '"cpoy"', "task.name = 'cpoy': must be a known task; did you mean 'copy'?"),
        ('name = "copy"\n', "", "task.name is missing: must be a string"),
        ('name = "copy"', 'nmae = "copy"', "task.name is missing: is 'nmae' a typo?"),
        ('"glr"', '"gr"', "model.blocks.0.mixer: unknown mixer 'gr'; did you mean 'glr'?"),
        ('mixer = "glr"\n', "", "model.blocks.0.mixer is missing: must be a string"),
        (
            '"2^k"',
            '"windw(2)"',
            "model.blocks.0.pattern: pattern 'windw(2)': unknown name 'windw' at character 1; did you mean 'window'?",
        ),
        (
            '[[model.blocks]]\nmixer = "glr"\npattern = "2^k"\n',
            "",
            "model.blocks is missing: needs at least one [[model.blocks]] with a mixer",
        ),
        (
            "[task]",
            "[task",
            "tiny.toml:4:6: not TOML: Error while parsing table header: expected ']', saw '\\n'",
        ),
        (
            "threads = 1",
            "seed = 1",
            "tiny.toml:2:8: not TOML: Error while parsing key-value pair: cannot redefine existing integer 'seed'",
        ),
    ],
)
def test_a_mistake_in_a_config_is_one_line(old, new, message):
    assert TINY.count(old) >= 1
    Path("tiny.toml").write_text(TINY.replace(old, new, 1))
    assert refuse("train", "tiny.toml") == message
    assert not Path("runs").exists()


def test_a_config_that_cannot_be_read():
    assert refuse("train", "no.toml") == "cannot read 'no.toml': No such file or directory"
    Path("bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert refuse("train", "bytes.toml").startswith("bytes.toml:1:1: not TOML: ")


@pytest.mark.parametrize(
    "setting, message",
    [
        ("steps", "--set steps: must have the form key=value, such as train.steps=100"),
        ("=3", "--set =3: must have the form key=value, such as train.steps=100"),
        ("train.step=3", "unknown key 'train.step'; did you mean 'steps'?"),
        ("train.steps=many", "train.steps = 'many': must be an integer"),
        ("train=3", "train = 3: must be a table"),
        ("seed.a=3", "--set seed.a=3: 'seed' holds a value, not a table"),
        (
            "model.blocks.1.pattern=fib",
            "--set model.blocks.1.pattern=fib: '1' must be an index from 0 to 1 (exclusive)",
        ),
        ("model.blocks.0=3", "model.blocks = [ 3 ]: must be an array of tables"),
        ("model.blocks=[]", "model.blocks = []: needs at least one [[model.blocks]] with a mixer"),
    ],
)
def test_a_mistake_in_set_is_one_line(setting, message):
    assert refuse("train", "tiny.toml", "--set", setting) == message


def test_set_overrides_the_file_and_the_config_holds_what_was_resolved():
    train("run", "--set", "model.blocks.0.pattern=cached(2^k)", "--set", "train.lr=1e-3")
    text = Path("run/config.toml").read_text()
    assert "pattern = 'cached(2^k)'" in text
    assert re.search(r"^lr = 0\.001", text, flags=re.M)
    assert "symbols = 4" in text, "defaults are written down"
    # The resolved config is itself a config that trains the same.
    train("again", config="run/config.toml")
    assert metrics("again") == metrics("run")
