"""What the libraries need, and the examples of the manual."""

import re
import subprocess

import pytest
import torch

from common import LIBRARY, ROOT


@pytest.mark.parametrize("layer", ["base", "pattern", "analysis", "kernels"])
def test_core_libraries_do_not_need_torch(layer):
    archive = LIBRARY.parent / f"libhopmix_{layer}.a"
    symbols = subprocess.run(["nm", "--demangle", str(archive)], check=True, capture_output=True, text=True).stdout
    assert "hopmix::" in symbols
    assert not re.findall(r"\b(?:at|c10|torch|caffe2)::\S*", symbols)


def test_examples_of_the_manual_run():
    text = (ROOT / "docs/operators.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 5
    assert text.count("\n```") % 2 == 0, "a fence is open"
    names = {"torch": torch}
    for example in examples:
        exec(re.sub(r"^torch\.ops\.load_library.*$", "", example, flags=re.MULTILINE), names)
