"""`hopmix bench`: what it lists, rejects and writes. Tests do not check speed."""

import copy
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import PATIENCE, ROOT, hopmix, refuse, start, succeed

QUICK = ["--length", "64", "--repetitions", "1"]

MACHINE = {"cpu", "logical_cpus", "l1_bytes", "l2_bytes", "l3_bytes", "memory_bytes", "simd", "torch_simd"}
MACHINE |= {"hopmix", "torch", "compiler", "date", "load"}
RESULT = {"case", "group", "pattern", "direction", "batch", "heads", "width", "length", "seconds", "times"}
RESULT |= {"tokens_per_second", "over_sdpa", "over_dense_solve", "reads", "useful_bytes", "useful_gb_per_s"}
RESULT |= {"working_set_bytes", "level", "part_of_loads", "part_of_row_loads", "extra_bytes", "extra_matrices"}


def numbers(value):
    """Every number in a JSON value."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(stdout, JSON) of every default case at 64 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    text = succeed("bench", *QUICK, "--json", "tiny.json", cwd=folder)
    assert {entry.name for entry in folder.iterdir()} == {"tiny.json"}
    return text, json.loads((folder / "tiny.json").read_text())


def test_list_names_every_case_with_a_line():
    listed = succeed("bench", "--list").splitlines()[1:]
    names = [line.split("  ")[0] for line in listed]
    assert {"glr_attention k^2+1", "glr_attention dense", "sdpa", "dense_solve", "long 2^k", "train", "gemm", "decode"} <= set(names)
    assert len(names) == len(set(names))
    assert all(len(line.split("  ", 1)[1].strip()) > 10 for line in listed)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["sdpaa"], "unknown benchmark 'sdpaa'; did you mean 'sdpa'?"),
        (["glr_attention k^2"], "unknown benchmark 'glr_attention k^2'; did you mean 'glr_attention 2^k'?"),
        (["train", "sdpa"], "benchmark 'train' must be timed alone, without 'sdpa'"),
        (["--length", "0"], "--length: Value 0 not in range 1 to 16777216"),
        (["--length", "64,x"], "--length: Value x not in range 1 to 16777216"),
        (["--threads", "0"], "--threads: Value 0 not in range 1 to 1024"),
        (["--repetitions", "0"], "--repetitions: Value 0 not in range 1 to 10000"),
        (["--dtype", "float16"], "--dtype: float16 not in {float32,bfloat16}"),
        (["--forward", "--backward"], "--forward excludes --backward"),
        (["--plot", "p.gif"], "plot file 'p.gif' must end in .svg or .png"),
        (["--plot", "p.svg", "--length", "64"], "--plot needs two lengths or more, but --length is 64"),
        (["--crossover", "--length", "64,64"], "--crossover needs two lengths or more, but --length is 64"),
        (["--crossover", "--no-peers"], "--crossover compares with 'sdpa', which is not timed with --no-peers or 'long'"),
        (["--crossover", "long"], "--crossover compares with 'sdpa', which is not timed with --no-peers or 'long'"),
        (["--json", "p.svg", "--plot", "p.svg"], "--json and --plot must differ, but both are 'p.svg'"),
        (["train", "--length", "64"], "benchmark 'train' does not accept --length"),
        (["train", "--plot", "p.svg"], "benchmark 'train' does not accept --plot"),
        (["train", "--dtype", "bfloat16"], "benchmark 'train' does not accept --dtype"),
        (["train", "--backward"], "benchmark 'train' does not accept --backward"),
        (["gemm", "sdpa"], "benchmark 'gemm' must be timed alone, without 'sdpa'"),
        (["gemm", "--threads", "2"], "benchmark 'gemm' does not accept --threads"),
        (["decode", "sdpa"], "benchmark 'decode' must be timed alone, without 'sdpa'"),
        (["decode", "--forward"], "benchmark 'decode' does not accept --forward"),
        (["decode", "--plot", "p.svg", "--length", "9"], "--plot needs two lengths or more, but --length is 9"),
        (["--json", "no/b.json"], "cannot write 'no/b.json': 'no' is not a folder"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    assert refuse("bench", *arguments) == message


def test_json_has_what_is_promised(tiny):
    text, report = tiny
    assert set(report) == {
        "suite", "machine", "settings", "seconds", "interrupted", "levels", "results", "crossover", "left_out",
    }
    assert set(report["machine"]) == MACHINE
    assert report["settings"] == {"dtype": "float32", "threads": 1, "clock": "thread CPU"}
    assert report["interrupted"] is False and report["left_out"] == []
    found = numbers({key: report[key] for key in ("seconds", "levels", "results")})
    assert all(math.isfinite(number) and number >= 0 for number in found)
    cases = {(result["case"], result["direction"]) for result in report["results"]}
    assert len(cases) == len(report["results"])
    for name in ("glr_attention k^2+1", "glr k^2+1", "sparse_attention k^2+1", "linear_recurrence", "sdpa", "dense_solve"):
        assert {(name, "forward"), (name, "forward+backward")} <= cases
        assert f"\n{name} " in text
    for result in report["results"]:
        assert set(result) == RESULT
        assert result["length"] == 64 and len(result["times"]) == 1
        assert result["seconds"] > 0


def test_numbers_of_a_result_fit_each_other(tiny):
    _, report = tiny
    by_name = {(result["case"], result["direction"]): result for result in report["results"]}
    levels = {level["level"]: level for level in report["levels"] if level["threads"] == 1}
    assert levels["memory"]["in_order_gb_per_s"] > 0
    for (name, direction), result in by_name.items():
        near = lambda value: pytest.approx(value, rel=1e-9)
        assert result["tokens_per_second"] == near(64 / result["seconds"])
        assert result["over_sdpa"] == near(by_name["sdpa", direction]["seconds"] / result["seconds"])
        assert result["over_dense_solve"] == near(by_name["dense_solve", direction]["seconds"] / result["seconds"])
        if result["extra_bytes"] is not None:  # a sanitizer counts for itself
            assert result["extra_matrices"] == near(result["extra_bytes"] / (64 * 64 * 4))
        gathers = direction == "forward" and result["pattern"] not in (None, "dense")
        assert (result["useful_bytes"] is not None) == gathers
        if gathers:
            assert result["useful_bytes"] == result["reads"] * 128 * 4
            rate = result["useful_bytes"] / result["seconds"] / 1e9
            assert result["useful_gb_per_s"] == near(rate)
            assert result["working_set_bytes"] == 64 * 128 * 4
            level = levels[result["level"]]
            assert level["capacity_bytes"] is None or level["capacity_bytes"] >= result["working_set_bytes"]
            assert result["part_of_loads"] == near(rate / level["in_order_gb_per_s"])
            assert result["part_of_row_loads"] == near(rate / level["rows_gb_per_s"])
    # 64 tokens of k^2+1: token i reads i-1, i-2, i-5, ...
    reads = sum(1 for i in range(64) for k in range(8) if k * k + 1 <= i)
    assert by_name["glr_attention k^2+1", "forward"]["reads"] == reads
    assert by_name["sparse_attention k^2+1", "forward"]["reads"] == reads + 64


def test_decoding_by_the_length_behind(tmp_path):
    succeed("bench", "decode", "--length", "70000,64", "--heads", "2", "--width", "4", "--repetitions", "1",
            "--json", "d.json", "--plot", "d.svg", cwd=tmp_path)  # fmt: skip
    report = json.loads((tmp_path / "d.json").read_text())
    assert report["suite"] == "decode" and set(report["machine"]) == MACHINE
    assert report["settings"] == {"dtype": "float32", "threads": 1, "heads": 2, "width": 4}
    results = {(result["case"], result["length"]): result for result in report["results"]}
    names = {name for name, _ in results}
    assert {"attention", "glr 2^k", "glr cached(k^2+1)", "gated_deltanet", "attention, mura"} <= names
    # What keeps every token is not measured at lengths where it takes gigabytes.
    assert {name for name, length in results if length == 70000} == {
        "local_attention 64", "glr cached(2^k)", "glr cached(k^2+1)", "gated_deltanet",
    }  # fmt: skip
    for result in results.values():
        assert result["seconds"] > 0 and result["tokens_per_second"] == pytest.approx(1 / result["seconds"])
    short = 64
    # k and v of 64 tokens, and the last input.
    assert results["attention", short]["state_bytes"] == (64 * 2 * 8 + 8) * 4
    assert results["attention", short]["faster"] is None
    # 63 tokens of a window, each with its number.
    for length in (64, 70000):
        assert results["local_attention 64", length]["state_bytes"] == (63 * (2 * 8 + 1) + 8) * 4
    cached = results["glr cached(2^k)", short]
    assert cached["smaller"] == pytest.approx(results["attention", short]["state_bytes"] / cached["state_bytes"])
    assert cached["faster"] == pytest.approx(results["attention", short]["seconds"] / cached["seconds"])
    assert {prompt["case"] for prompt in report["prompts"]} == names
    for prompt in report["prompts"]:
        assert prompt["length"] == 1024
        assert prompt["faster"] == pytest.approx(prompt["step_seconds"] / prompt["prefill_seconds"])
    assert "<svg" in (tmp_path / "d.svg").read_text()


def test_lengths_crossover_and_picture():
    succeed("bench", "linear_recurrence", "--length", "128,32", "--repetitions", "1", "--forward", "--crossover",
            "--json", "c.json", "--plot", "c.svg")  # fmt: skip
    report = json.loads(Path("c.json").read_text())
    assert [r["length"] for r in report["results"] if r["case"] == "sdpa"] == [32, 128]
    assert {r["direction"] for r in report["results"]} == {"forward"}
    crossing = {c["case"]: c["faster_from"] for c in report["crossover"]}
    assert set(crossing) == {"linear_recurrence", "dense_solve"}
    assert crossing["linear_recurrence"] in (None, 32, 128)
    svg = Path("c.svg").read_text()
    assert "linear_recurrence" in svg and "nanoseconds" in svg


def test_what_is_too_long_for_a_peer_is_said():
    text = succeed("bench", "linear_recurrence", "--length", "8193", "--repetitions", "1", "--forward", "--width", "2",
                   "--json", "l.json")  # fmt: skip
    assert "left out: dense_solve at T 8193 (memory grows quadratically; timed up to 8192)" in text
    report = json.loads(Path("l.json").read_text())
    assert [left["case"] for left in report["left_out"]] == ["dense_solve"]
    assert all(r["over_dense_solve"] is None for r in report["results"])


def test_a_json_that_cannot_be_written_loses_nothing():
    Path("old.json").mkdir()
    done = Path("old.json/keep")
    done.write_text("mine")
    ended = hopmix("bench", "linear_recurrence", "--no-peers", "--forward", *QUICK, "--json", "old.json")
    assert ended.returncode == 2
    assert "cannot write 'old.json'" in ended.stderr
    assert "linear_recurrence" in ended.stdout, "what was measured is shown"
    assert done.read_text() == "mine"
    assert not list(Path(".").glob("*.tmp"))


def test_interrupted_before_anything_was_measured_keeps_the_older_file():
    Path("b.json").write_text("older")
    process = start("bench", "block_chacal", "--length", "200000", "--no-peers", "--forward", "--json", "b.json")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "stopped" in errors
    assert Path("b.json").read_text() == "older"


def test_peers_are_left_out_where_none_are_wanted():
    succeed("bench", "--no-peers", "--forward", *QUICK, "--json", "n.json")
    cases = {r["case"] for r in json.loads(Path("n.json").read_text())["results"]}
    assert "linear_recurrence" in cases and not cases & {"sdpa", "dense_solve"}
    succeed("bench", "sdpa", "--no-peers", "--forward", *QUICK, "--json", "n.json")
    assert {r["case"] for r in json.loads(Path("n.json").read_text())["results"]} == {"sdpa"}


def test_bfloat16_is_timed():
    succeed("bench", "linear_recurrence", "--dtype", "bfloat16", "--forward", *QUICK, "--json", "b.json")
    report = json.loads(Path("b.json").read_text())
    assert report["settings"]["dtype"] == "bfloat16"
    assert {r["case"] for r in report["results"]} == {"linear_recurrence", "sdpa", "dense_solve"}
    assert report["levels"] == [], "nothing here fetches rows"


def test_training_tells_where_a_step_goes():
    text = succeed("bench", "train", "--repetitions", "1", "--json", "t.json")
    report = json.loads(Path("t.json").read_text())
    assert [t["case"] for t in report["training"]] == ["attention", "dense recurrence", "2^k", "k^2+1"]
    for training in report["training"]:
        assert training["case"] in text
        assert training["steps_per_second"] == pytest.approx(1 / training["seconds"])
        assert set(training["phases"]) == {"data", "forward", "backward", "clip", "optimizer"}
        for phase in training["phases"].values():
            assert sum(phase["operators"].values()) == pytest.approx(phase["seconds"])
    for row, operator in ((1, "glr_attention"), (2, "glr_attention")):
        inside = report["training"][row]["phases"]["forward"]["operators"]
        assert any(name in inside for name in (f"hopmix::{operator}", f"hopmix::_{operator}"))


# ---- The page that is written from such files -----------------------------------------------------


def page(*reports):
    """The page that scripts/performance_page.py writes for these reports."""
    files = []
    for i, report in enumerate(reports):
        files.append(f"performance-{i}.json")
        Path(files[-1]).write_text(json.dumps(report))
    script = ROOT / "scripts/performance_page.py"
    subprocess.run([sys.executable, script, *files, "--out", "page.md"], check=True)
    return Path("page.md").read_text()


def test_page_shows_what_the_file_holds(tiny):
    report = copy.deepcopy(tiny[1])
    report["machine"]["cpu"] = "A Processor That Is Nowhere Else"
    for result in report["results"]:
        if (result["case"], result["direction"]) == ("glr k^2+1", "forward"):
            result["seconds"], result["over_sdpa"] = 0.000123, 7.89
    text = page(report)
    assert "A Processor That Is Nowhere Else" in text
    row = next(line for line in text.splitlines() if line.startswith("| glr k^2+1 |"))
    assert "123 us" in row and "7.89" in row
    assert text.count("| sdpa |") == 2, "forward, and forward with backward"


def test_page_without_measurements_has_no_numbers():
    Path("results").mkdir()
    text = page()
    assert "make performance" in text
    assert "|" not in text


def test_page_refuses_what_is_no_report():
    Path("x.json").write_text("{}")
    script = ROOT / "scripts/performance_page.py"
    done = subprocess.run([sys.executable, script, "x.json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "performance_page: x.json: not written by hopmix bench\n")


def test_gemm_times_every_product_by_every_engine(tmp_path):
    text = succeed("bench", "gemm", "--repetitions", "1", "--json", "g.json", cwd=tmp_path)
    products = json.loads((tmp_path / "g.json").read_text())["products"]
    engines = {p["engine"] for p in products}
    assert {"highway", "torch.mm"} <= engines
    sizes = {(p["m"], p["n"], p["k"]) for p in products}
    assert len(products) == len(sizes) * len(engines) and {(64, 64, 64), (1, 768, 512)} <= sizes
    for p in products:
        assert p["gflops"] == pytest.approx(2e-9 * p["m"] * p["n"] * p["k"] / p["seconds"])
        assert f"{p['m']} x {p['n']} x {p['k']}" in text
