"""``docs/stepping.md``: its code runs, and prints what it says."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/stepping.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_pages_code_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is missing: pip install 'nodectl[gym]'")
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    said = 0
    for block in BLOCKS:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(block, names)
        expected = re.findall(r"^print\(.*\)  # (.+)$", block, re.MULTILINE)
        if expected:
            assert printed.getvalue().splitlines() == expected
        said += len(expected)
    assert (len(BLOCKS), said) == (5, 6)
