"""Debian's Prometheus and its promtool, which scripts/foreign.sh unpacks; installed ones do as well."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / "build" / "foreign" / "root" / "usr" / "bin"


def program(name: str) -> Path:
    """Its path; the test is skipped where there is none."""
    found = UNPACKED / name if (UNPACKED / name).exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: install prometheus, or unpack it with scripts/foreign.sh")
    return Path(found)


def promtool(*arguments: str | Path, cwd: Path = ROOT) -> str:
    """What it prints; a failure of it is one of the test."""
    done = subprocess.run([program("promtool"), *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers(url: str, path: str, **parameters: str) -> Any:
    """The data of Prometheus' answer to a request. ``OSError`` while it starts."""
    request = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        raise AssertionError(f"{parameters}: {error.read().decode()}") from None
