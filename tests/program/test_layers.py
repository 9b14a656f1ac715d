"""The folders of hopmix/ include only what docs/architecture.md allows."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "hopmix"


def layers():
    """Each folder with the layers that its table row allows, directly or through another layer."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| (.+?) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    names = [name for name, _ in rows]
    allowed = {}
    for name, uses in rows:
        direct = set(names) if uses.strip() == "all" else {word for word in re.findall(r"\w+", uses) if word in names}
        allowed[name] = direct.union({name}, *(allowed[used] for used in direct if used in allowed))
    return allowed


def includes(path):
    return re.findall(r'^#include "hopmix/(\w+)/', path.read_text(), re.MULTILINE)


def test_the_table_lists_every_folder():
    assert set(layers()) == {path.name for path in SOURCES.iterdir() if path.is_dir()}


def test_folders_include_only_layers_above_them():
    allowed = layers()
    wrong = [
        f"{path.relative_to(ROOT)} includes {used}/"
        for path in sorted(SOURCES.rglob("*.[hc]*"))
        for used in includes(path)
        if not path.name.endswith("_test.cc") and used not in allowed[path.relative_to(SOURCES).parts[0]]
    ]
    assert not wrong


def test_kernels_and_what_is_below_them_know_no_torch():
    free = [path for layer in ("base", "pattern", "analysis", "kernels") for path in (SOURCES / layer).rglob("*.[hc]*")]
    assert len(free) > 100
    wrong = [path for path in free if re.search(r"#include [<\"](torch|ATen|c10)/", path.read_text())]
    assert not wrong
