"""Text: the task, `hopmix tokenizer` and `hopmix generate`, from files to generated text."""

import json
import math
import os
import random
import re
import stat
import subprocess
from pathlib import Path

import pytest
from program import ENVIRONMENT, HOPMIX, PATIENCE, RUN_FILES, TINY, contents, hopmix, metrics, names, refuse, succeed, train

WORDS = "the king speaks softly to his café and the queen of night says no".split()
TEXT = TINY.replace('"copy"\nm = 6', '"text"\npath = "train.txt"\nvalid = "valid.txt"\nlength = 24').replace(
    "width = 16", 'width = 16\npositions = "none"'
)


def prose(lines, seed):
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) + ".\n" for _ in range(lines))


@pytest.fixture(autouse=True)
def text(folder):
    Path("train.txt").write_text(prose(500, 1))
    Path("valid.txt").write_text(prose(100, 2))
    Path("text.toml").write_text(TEXT)


@pytest.fixture
def run(text):
    train("run", config="text.toml")
    return "run"


def subwords(*arguments):
    succeed("tokenizer", "train", "--input", "train.txt", "--vocabulary", "300", "--output", "x.model", *arguments)
    return ("--set", "task.tokenizer=x.model", "--set", "task.cache=cache")


# ---- The task -------------------------------------------------------------------------------------


def test_bits_per_byte_of_the_held_out_text(run):
    assert names("run") == RUN_FILES | {"inputs.json"}
    written = metrics("run")[-1]["eval"]
    assert written["bits_per_byte"] == pytest.approx(written["loss"] / math.log(2))
    assert written["asked"] == 2 * 8 * 24
    shown = succeed("eval", "run")
    assert re.search(rf"^bits per byte +{written['bits_per_byte']:.3f}   held out$", shown, re.M), shown
    assert json.loads(succeed("eval", "run", "--json")) == {**written, "step": 12}


def test_training_learns_what_evaluation_does_not_see():
    """The held-out text has other letters: a model that learns to predict only `a` fails on `b`."""
    Path("train.txt").write_text("a" * 5000)
    Path("valid.txt").write_text("b" * 5000)
    train("run", "--set", "train.lr=1e-2", "--set", "train.steps=40", config="text.toml")
    lines = metrics("run")
    assert lines[-2]["loss"] < 0.1
    assert lines[-1]["eval"]["loss"] > 5
    assert lines[-1]["eval"]["accuracy"] == 0


def test_a_part_held_out_and_a_folder():
    Path("books").mkdir()
    for name in ("one", "two", "three"):
        Path("books", name).write_text(prose(50, name))
    for path in ("train.txt", "books"):
        train(f"run-{path}", "--set", f"task.path={path}", "--set", "task.valid=''", config="text.toml")
        assert 0 < metrics(f"run-{path}")[-1]["eval"]["bits_per_byte"] < 9


def test_the_same_seed_gives_the_same_numbers(run):
    train("again", config="text.toml")
    train("other", "--set", "seed=4", config="text.toml")
    assert metrics("again") == metrics("run") != metrics("other")


def test_subwords():
    settings = subwords()
    train("run", *settings, config="text.toml")
    assert names("run") == RUN_FILES | {"inputs.json", "tokenizer.model"}
    assert Path("run/tokenizer.model").read_bytes() == Path("x.model").read_bytes()
    assert len(list(Path("cache").iterdir())) == 2
    before = contents("cache")
    written = metrics("run")[-1]["eval"]
    tokens = len(succeed("tokenizer", "encode", "x.model", input=Path("valid.txt").read_text()).split())
    per_token = len(Path("valid.txt").read_bytes()) / tokens
    assert written["bits_per_byte"] == pytest.approx(written["loss"] / math.log(2) / per_token)
    assert json.loads(succeed("eval", "run", "--json")) == {**written, "step": 12}
    assert contents("cache") == before, "tokens are made once"

    # The run's own tokenizer suffices to generate; the run must not resume with a different one.
    Path("x.model").unlink()
    Path("train.txt").unlink()
    assert json.loads(succeed("generate", "run", "--prompt", "the king", "--json"))["tokens"] == 200
    Path("train.txt").write_text(prose(500, 1))
    subwords("--type", "bpe")
    message = refuse("train", "run", "--resume", "--quiet")
    assert message == (
        "cannot resume, 'run/tokenizer.model' differs from the file that this config names: that file changed after the run began"
    )


def test_packed_documents():
    """Trains, resumes, evaluates at another length, and reads the config back, including the separator."""
    settings = ("--set", "task.documents=separated", "--set", 'task.separator=".\\n"')
    train("run", *settings, config="text.toml")
    written = metrics("run")[-1]["eval"]
    assert 0 < written["asked"] < 2 * 8 * 24, "the last byte of a document asks for nothing"
    assert written["bits_per_byte"] == pytest.approx(written["loss"] / math.log(2))
    assert json.loads(succeed("eval", "run", "--json")) == {**written, "step": 12}
    assert json.loads(succeed("eval", "run", "--json", "--set", "task.length=60"))["asked"] > 2 * 8 * 24
    train("again", *settings, config="text.toml")
    assert metrics("again") == metrics("run")
    train("plain", config="text.toml")
    assert metrics("plain") != metrics("run")
    message = refuse("train", "text.toml", "--set", "task.documents=separated", "--set", "task.separator=never said")
    assert message == (
        "task.separator = 'never said': must separate documents, but does not occur in the training text"
    )
    message = refuse("train", "text.toml", "--set", "task.seperator=x")
    assert message == "unknown key 'task.seperator'; did you mean 'separator'?"


def test_generate_ends_with_the_document():
    """A model that has learned one short line produces it and its end, and no more."""
    line = "the king says no\n"
    Path("train.txt").write_text(prose(60, 1) + line * 300)
    Path("valid.txt").write_text(line * 20)
    train(
        "run",
        *subwords("--end-of-document"),
        *("--set", "task.documents=separated", "--set", 'task.separator="\\n"'),
        *("--set", "train.lr=2e-2", "--set", "train.steps=120", "--set", "train.warmup=10"),
        config="text.toml",
    )
    made = json.loads(succeed("generate", "run", "--prompt", "the king", "--greedy", "--json"))
    assert made["text"] == line.removeprefix("the king")
    assert made["stopped"] and made["tokens"] < 20


def test_a_text_that_is_not_there():
    message = refuse("train", "text.toml", "--set", "task.path=none.txt")
    assert message == "task.path = 'none.txt': must be a file or folder of text, but does not exist"
    message = refuse("train", "text.toml", "--set", "task.tokenizer=train.txt")
    assert message == "task.tokenizer = 'train.txt': is not a SentencePiece model"
    assert not Path("runs").exists()


# ---- Tokenizers -----------------------------------------------------------------------------------


def test_tokenizer_there_and_back():
    subwords()
    assert re.fullmatch(r"y\.model: 290 tokens\n", succeed(*"tokenizer train --input train.txt --vocabulary 290 --output y.model".split()))
    said = "The queen\tsays  “no”\n\n"
    for model in ("x.model", "bytes"):
        encoded = succeed("tokenizer", "encode", model, said)
        assert succeed("tokenizer", "decode", model, encoded) == said
    assert succeed("tokenizer", "encode", "bytes", input=said) == encoded
    assert succeed("tokenizer", "decode", "bytes", input=encoded) == said
    assert encoded.split()[:3] == ["84", "104", "101"]


def test_a_tokenizer_loses_no_byte():
    subwords()
    odd = b"the\xe2\x96\x81king \xe2\x96\x85 caf\xe9\xff \xe2\x81\x87 a\x00b\t\r\n\xe2\x96"
    Path("odd.txt").write_bytes(odd)

    def piped(command, given):
        run = subprocess.run([HOPMIX, "tokenizer", command, "x.model"], input=given, capture_output=True, timeout=PATIENCE, check=True)
        return run.stdout

    assert piped("decode", piped("encode", odd)) == odd


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_text_that_teaches_nothing(kind):
    """SentencePiece would give no reason, or end the process."""
    for text in ("\n" * 3000, "\t\t\t\n" * 3000):
        Path("empty.txt").write_text(text)
        message = refuse(*"tokenizer train --input empty.txt --vocabulary 300 --output y.model --type".split(), kind)
        assert message == "the text must have characters besides tabs and line ends"


def test_tokenizer_errors():
    base = ("tokenizer", "train", "--output", "x.model")
    assert refuse(*base, "--input", "none") == "--input = 'none': must be a file or folder of text, but does not exist"
    for vocabulary in ("-5", "200", "100000"):
        message = refuse(*base, "--input", "train.txt", "--vocabulary", vocabulary)
        assert message.startswith(f"--vocabulary = {vocabulary}: must be "), message
    assert not Path("x.model").exists()
    assert refuse("tokenizer", "decode", "bytes", "1 256") == "token '256': must be from 0 to 255"
    assert refuse("tokenizer", "decode", "bytes", "1 x") == "token 'x': must be from 0 to 255"
    assert refuse("tokenizer", "encode", "train.txt", "x") == "model = 'train.txt': is not a SentencePiece model"


# ---- Generating -----------------------------------------------------------------------------------


def said(*arguments):
    return json.loads(succeed("generate", "run", "--prompt", "the king", "--json", "--tokens", "40", *arguments))


def test_generate_shows_text_and_what_it_took(run):
    before = contents("run")
    done = hopmix("generate", "run", "--prompt", "the king", "--tokens", "50", "--seed", "3")
    assert done.returncode == 0
    made = json.loads(succeed("generate", "run", "--prompt", "the king", "--tokens", "50", "--seed", "3", "--json"))
    assert done.stdout == re.sub("\r\n?", "\n", made["text"]) + "\n"  # as Python reads a text stream
    line = re.fullmatch(r"50 tokens, \S+ tokens/s \(prompt: 8, \S+ tokens/s\), state (\d+) bytes\n", done.stderr)
    assert int(line[1]) == made["state_bytes"] > 0
    assert {key: made[key] for key in ("prompt", "prompt_tokens", "tokens", "stopped", "step")} == {
        "prompt": "the king",
        "prompt_tokens": 8,
        "tokens": 50,
        "stopped": False,
        "step": 12,
    }
    assert made["tokens_per_second"] > 0 and made["prompt_tokens_per_second"] > 0
    assert contents("run") == before


def test_seeds_greedy_and_limits(run):
    assert said("--seed", "1")["text"] == said("--seed", "1")["text"] != said("--seed", "2")["text"]
    greedy = said("--greedy")["text"]
    assert greedy == said("--temperature", "0", "--seed", "9")["text"] != said("--seed", "1")["text"]
    assert greedy == said("--top-k", "1", "--seed", "5")["text"] == said("--top-p", "1e-9", "--seed", "6")["text"]
    whole = said("--seed", "1", "--top-k", "20")["text"]
    stop = whole[20:23]
    stopped = said("--seed", "1", "--top-k", "20", "--stop", stop, "--stop", "never said")
    assert stopped["stopped"] and stopped["text"] == whole[: whole.index(stop)]


def test_output_is_always_utf8(run):
    """An untrained model produces arbitrary bytes; no invalid ones reach the terminal."""
    done = subprocess.run(
        [HOPMIX, "generate", "run", "--prompt", "x", "--temperature", "5", "--tokens", "400"],
        capture_output=True,
        timeout=PATIENCE,
        env=ENVIRONMENT,
    )
    assert "\ufffd" in done.stdout.decode("utf-8")


def test_generate_refuses_in_one_line(run):
    train("copy")
    assert refuse("generate", "copy", "--prompt", "x") == (
        "'copy' was trained on the task 'copy': must be a run of the task 'text'"
    )
    assert refuse("generate", "none", "--prompt", "x") == "'none' is not a run directory"
    assert refuse("generate", "run", "--prompt", "") == "--prompt = '': must contain at least one token"
    assert refuse("generate", "run", "--prompt", b"caf\xe9") == "--prompt: must be UTF-8, but byte 3 is invalid"
    assert refuse("generate", "run", "--prompt", "x", "--stop", b"\xe9") == "--stop: must be valid UTF-8"
    assert refuse("generate", "run", "--prompt", "x", "--tokens", "0") == "--tokens = 0: must be at least 1"
    assert refuse("generate", "run", "--prompt", "x", "--top-p", "0") == "--top-p = 0: must be above 0 and at most 1"
    assert refuse("generate", "run", "--prompt", "x", "--temperature", "-1") == (
        "--temperature = -1: must be at least 0 and finite"
    )
    assert refuse("generate", "run") == "--prompt is required"


def test_prompts_of_a_file_go_on_together(run):
    prompts = ["the king", "his café", "night", "and the queen of night says no", "x"]
    Path("prompts.txt").write_text("\r\n".join(prompts[:3]) + "\n" + "\n".join(prompts[3:]))
    # Few to draw from: products of several rows round another way, and must not decide.
    drawn = ("--tokens", "40", "--top-k", "4")
    together = ("generate", "run", "--prompts", "prompts.txt", *drawn, "--seed", "3")
    done = hopmix(*together, "--batch", "2", "--json")
    assert done.returncode == 0
    read = sum(len(prompt.encode()) for prompt in prompts)
    summary = rf"5 texts, 200 tokens, \S+ tokens/s \(prompts: {read}, \S+ tokens/s\)\n"
    assert re.fullmatch(summary, done.stderr), done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == prompts
    assert [line["seed"] for line in lines] == [3, 4, 5, 6, 7]
    for line in lines:
        own = ("--prompt", line["prompt"], "--seed", str(line["seed"]), *drawn, "--json")
        alone = json.loads(succeed("generate", "run", *own))
        assert line == {key: alone.get(key, line["seed"]) for key in line}
    shown = [f"==> {i} <==\n{line['prompt']}{line['text']}\n" for i, line in enumerate(lines, 1)]
    expected = re.sub("\r\n?", "\n", "\n".join(shown))  # as Python reads a text stream
    assert succeed(*together) == expected
    stdin = (*together[:3], "-", *together[4:], "--batch", "100")
    assert succeed(*stdin, input=Path("prompts.txt").read_text()) == expected
    # Of one that stops early the place is another's, and the order stays.
    stop = lines[0]["text"][10:13]
    stopped = [json.loads(line) for line in succeed(*together, "--batch", "2", "--json", "--stop", stop).splitlines()]
    assert [line["prompt"] for line in stopped] == prompts
    assert stopped[0]["stopped"] and stopped[0]["text"] == lines[0]["text"][: lines[0]["text"].index(stop)]
    # Behind a text that all share.
    succeed("generate", "run", "--prompt", "the king", "--tokens", "5", "--save-state", "s.safetensors")
    behind = json.loads(succeed(*together, "--load-state", "s.safetensors", "--json").splitlines()[1])
    same = ("--load-state", "s.safetensors", "--prompt", "his café", "--seed", "4", *drawn, "--json")
    assert behind["text"] == json.loads(succeed("generate", "run", *same))["text"]
    assert behind["prompt_tokens"] == 1 + len("his café".encode())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [("--prompts", "prompts.txt"), ("--prompts", "prompts.txt", "--json"), ("--prompt", "a")])
def test_text_that_cannot_be_written_is_an_error(run, arguments):
    Path("prompts.txt").write_text("a\nb\n")
    with open("/dev/full", "w") as full:
        command = [HOPMIX, "generate", "run", *arguments, "--tokens", "3"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr == "hopmix: cannot write to standard output: No space left on device\n"


def test_prompts_refused_in_one_line(run):
    def refused(content, *arguments):
        Path("p.txt").write_bytes(content)
        return refuse("generate", "run", "--prompts", "p.txt", *arguments)

    assert refused(b"a\n\nb\n") == "--prompts: line 2 of 'p.txt' is empty: each line must hold a prompt"
    assert refused(b"") == "--prompts: 'p.txt' has no lines"
    assert refused(b"a\ncaf\xe9\n") == "--prompts: line 2 of 'p.txt' must be UTF-8, but byte 3 is invalid"
    assert "none.txt" in refuse("generate", "run", "--prompts", "none.txt")
    assert refused(b"a\n", "--batch", "0") == "--batch = 0: must be at least 1"
    assert refused(b"a\n", "--tokens", "0") == "--tokens = 0: must be at least 1"
    assert refused(b"a\n", "--prompt", "b") == "--prompt: cannot be combined with --prompts"
    assert refused(b"a\n", "--save-state", "s") == "--save-state: saves a single text and cannot be combined with --prompts"
    assert "--prompts" in refuse("generate", "run", "--prompt", "x", "--batch", "3")
    for name in ("--prompts", "--load-state", "--save-state"):  # an unset variable of a shell
        assert refuse("generate", "run", "--prompt", "x", name, "") == f"{name}: is '', but must name a file or a folder"
    assert refuse("generate", "run", "--prompt", "x", "--seed", "-5").startswith("--seed: is '-5', but must be a whole number from 0")
    assert refuse("generate", "run", "--prompt", "x", "--tokens", "9" * 20).startswith(f"--tokens: is '{'9' * 20}', but must be")


def test_a_prompt_that_does_not_fit_is_an_error_of_its_own():
    train("run", "--set", "model.positions=learned", config="text.toml")
    Path("p.txt").write_text("x\n" + "y" * 25 + "\nz\n")
    done = hopmix("generate", "run", "--prompts", "p.txt", "--tokens", "5", "--json")
    assert done.returncode == 2
    reason = "prompt: has 25 tokens, but the model's table of learned positions holds 24 (model.max_length)"
    errors = done.stderr.splitlines()
    assert errors[0] == f"line 2: {reason}" and len(errors) == 3
    assert errors[2] == "hopmix: 1 of 3 texts failed, the first on line 2"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("error") for line in lines] == [None, reason, None]
    assert [line["tokens"] for line in lines] == [5, 0, 5]


def test_a_state_is_written_where_it_is_asked_for(run):
    """A link is followed, a pipe and a device are written through, and none is replaced."""
    save = ("generate", "run", "--prompt", "the king", "--tokens", "5", "--seed", "1", "--save-state")
    succeed(*save, "file")
    Path("link").symlink_to("target")
    succeed(*save, "link")
    assert Path("link").is_symlink() and Path("target").read_bytes() == Path("file").read_bytes()
    os.mkfifo("pipe")
    process = subprocess.Popen([HOPMIX, *save, "pipe"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    assert Path("pipe").read_bytes() == Path("file").read_bytes()
    assert process.wait(timeout=PATIENCE) == 0 and stat.S_ISFIFO(os.stat("pipe").st_mode)
    if Path("/dev/full").is_char_device():
        done = hopmix(*save, "/dev/full")
        assert done.returncode == 2
        assert done.stderr.endswith("hopmix: cannot write '/dev/full': No space left on device\n")
        assert Path("/dev/full").is_char_device()


def test_prompts_without_end(run):
    if Path("/dev/zero").is_char_device():
        message = refuse("generate", "run", "--prompts", "/dev/zero")
        assert message == "cannot read '/dev/zero': it has no end within 1 MiB; must be a file"
        with open("/dev/zero") as zeros:
            assert "no end within 1 MiB" in refuse("generate", "run", "--prompts", "-", stdin=zeros)


def test_what_a_run_was_trained_on_must_not_change(run):
    score = succeed("eval", "run", "--json")
    before = contents("run")
    for name in ("train.txt", "valid.txt"):
        text, key = Path(name).read_bytes(), f"task.{'path' if name == 'train.txt' else 'valid'}"
        Path(name).write_bytes(text[:-5] + b"says\n")
        message = f"{key} = '{name}' has changed since 'run' was started: it had {len(text)} bytes with hash "
        assert refuse("train", "run", "--resume", "--quiet").startswith(f"cannot resume, {message}")
        assert refuse("eval", "run").startswith(message)
        succeed("generate", "run", "--prompt", "x", "--tokens", "2")  # it reads no text
        Path(name).write_bytes(text)
    Path("other.txt").write_text(prose(100, 3))
    assert succeed("eval", "run", "--json", "--set", "task.valid=other.txt") != score, "another text, on purpose"
    assert succeed("eval", "run", "--json") == score
    assert contents("run") == before


def test_what_a_pattern_was_read_from_must_not_change():
    matrix = "%%MatrixMarket matrix coordinate pattern general\n400 400 {}\n{}"
    chain = [f"{i} {i - 1}" for i in range(2, 401)]
    Path("p.mtx").write_text(matrix.format(len(chain), "\n".join(chain)))
    train("run", "--set", "model.blocks.0.pattern=dag(p.mtx)", config="text.toml")
    succeed("generate", "run", "--prompt", "the king", "--tokens", "5", "--save-state", "s.safetensors")
    again = ("generate", "run", "--load-state", "s.safetensors", "--tokens", "5")
    succeed(*again)
    chain[20] = "22 3"
    Path("p.mtx").write_text(matrix.format(len(chain), "\n".join(chain)))
    message = "model.blocks.0.pattern = 'dag(p.mtx)' has changed since 'run' was started: it had "
    assert refuse("train", "run", "--resume", "--quiet").startswith("cannot resume, " + message)
    assert refuse("eval", "run").startswith(message)
    assert refuse(*again).startswith(message)
    Path("run/inputs.json").unlink()  # as in a run of an earlier version: the state still knows
    assert refuse(*again).startswith("'s.safetensors' was saved by a different model: ")


def test_a_cache_that_was_cut_short_is_made_again():
    settings = subwords()
    train("run", *settings, config="text.toml")
    score = succeed("eval", "run", "--json")
    before = {path: path.read_bytes() for path in Path("cache").iterdir()}
    for path, tokens in before.items():
        for cut in (1, 2, 100, len(tokens) // 2):
            path.write_bytes(tokens[:-cut])
            assert succeed("eval", "run", "--json") == score
            assert path.read_bytes() == tokens


def test_a_saved_state_goes_on(run):
    whole = said("--greedy")["text"]
    start = ("generate", "run", "--prompt", "the king", "--greedy", "--json")
    first = json.loads(succeed(*start, "--tokens", "15", "--save-state", "s.safetensors"))
    before = contents("run")
    rest = json.loads(
        succeed("generate", "run", "--load-state", "s.safetensors", "--greedy", "--tokens", "25", "--json")
    )
    assert rest["prompt"] == "" and rest["prompt_tokens"] == 1, "the token that was not read"
    if "\ufffd" not in whole:
        assert first["text"] + rest["text"] == whole
    more = json.loads(
        succeed("generate", "run", "--load-state", "s.safetensors", "--prompt", "the queen", "--json", "--tokens", "5")
    )
    assert more["prompt_tokens"] == 1 + len("the queen")
    assert contents("run") == before
    train("other", "--set", "seed=5", config="text.toml")
    message = refuse("generate", "other", "--load-state", "s.safetensors")
    assert message.startswith("'s.safetensors' was saved by a different model: fingerprint ")
    assert refuse("generate", "run", "--load-state", "run/model.safetensors") == (
        "'run/model.safetensors' is not a hopmix state file"
    )
    assert "none.safetensors" in refuse("generate", "run", "--load-state", "none.safetensors")


def test_a_prompt_longer_than_the_table_of_positions():
    train("run", "--set", "model.positions=learned", config="text.toml")
    table = "the model's table of learned positions holds 24 (model.max_length)"
    assert refuse("generate", "run", "--prompt", "x" * 25, "--tokens", "1") == f"--prompt: has 25 tokens, but {table}"
    assert refuse("generate", "run", "--prompt", "x" * 20, "--tokens", "6") == (
        f"--tokens = 6: must be at most 5 after a prompt of 20: {table}"
    )
    fits = json.loads(succeed("generate", "run", "--prompt", "x" * 20, "--tokens", "5", "--json"))
    assert fits["tokens"] == 5
