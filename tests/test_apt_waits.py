"""scripts/apt.sh: the set-up waits for another apt, and repeats a failure once. With an apt-get that only pretends."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)"
OTHER = "E: Failed to fetch the index"


def run(where: Path, failures: list[str], wait_s: int = 600) -> tuple[int, list[str], str]:
    """``apt_get update`` against an apt-get that fails so: (exit status, its calls, errors shown). Nothing sleeps."""
    for number, failure in enumerate(failures):
        (where / f"failure-{number}").write_text(failure + "\n")
    apt = where / "apt-get"
    apt.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\ntouch calls\nfile=failure-$(wc -l <calls)\necho "$@" >>calls\n'
        '[ ! -f "$file" ] || { cat "$file" >&2; exit 100; }\n'
    )
    apt.chmod(0o755)
    script = f'. "{ROOT}/scripts/apt.sh"; sleep() {{ :; }}; apt_get update -qq'
    environment = {"PATH": f"{where}:/usr/bin:/bin", "APT_WAIT_S": str(wait_s)}
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, env=environment)
    return done.returncode, (where / "calls").read_text().splitlines(), done.stderr


def test_apt_is_repeated_until_another_one_has_ended(tmp_path: Path) -> None:
    status, calls, errors = run(tmp_path, [LOCKED] * 3)
    assert (status, len(calls), errors) == (0, 4, "")
    assert calls[0] == "-o DPkg::Lock::Timeout=600 update -qq"


def test_a_lock_that_stays_is_an_error_when_the_wait_is_over(tmp_path: Path) -> None:
    status, calls, errors = run(tmp_path, [LOCKED] * 9, wait_s=10)
    assert (status, len(calls), errors.strip()) == (100, 3, LOCKED)


@pytest.mark.parametrize(("failures", "expected"), [(1, 0), (2, 100)])
def test_any_other_failure_is_repeated_once(tmp_path: Path, failures: int, expected: int) -> None:
    status, calls, _ = run(tmp_path, [OTHER] * failures)
    assert (status, len(calls)) == (expected, 2)


@pytest.mark.parametrize("script", ["setup", "foreign", "namespaces", "debian_chroot"])
def test_scripts_that_need_a_lock_of_apt_call_it_in_no_other_way(script: str) -> None:
    text = (ROOT / f"scripts/{script}.sh").read_text()
    assert re.search(r"apt_get (update|install)", text)
    without_a_lock = ("install -s", "download")
    commands = re.findall(r"(?:^|[;&|{(])[ \t]*apt-get (.*)", text, re.MULTILINE)
    assert [one for one in commands if not one.startswith(without_a_lock)] == []
