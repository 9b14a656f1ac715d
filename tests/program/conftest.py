"""Every test runs in a folder of its own that contains only tiny.toml."""

from pathlib import Path

import pytest
from program import TINY


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
