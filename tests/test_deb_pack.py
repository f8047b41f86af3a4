"""Packing the Debian packages: what is interrupted leaves nothing that looks whole."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
PACKAGES = ("nodectl", "clusterctl", "clusterctl-page", "nodectl-twin")
CONTROL = "Package: {0}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <n@n.invalid>\nDescription: a test\n"

KILLED = """#!/bin/sh
for target; do :; done
case $target in
*clusterctl*) head -c 500 /dev/urandom >"$target"; kill -9 $PPID; exit 1 ;;
esac
exec {real} "$@"
"""
"""A dpkg-deb with which the build is killed half-way through the second package."""

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is missing: install dpkg")


def test_an_interrupted_build_leaves_no_package_under_its_final_name(tmp_path: Path) -> None:
    work, out, programs = tmp_path / "work", tmp_path / "out", tmp_path / "bin"
    for package in PACKAGES:
        (work / package / "DEBIAN").mkdir(parents=True)
        (work / package / "DEBIAN/control").write_text(CONTROL.format(package))
    out.mkdir()
    programs.mkdir()
    (programs / "dpkg-deb").write_text(KILLED.format(real=shutil.which("dpkg-deb")))
    (programs / "dpkg-deb").chmod(0o755)
    command = [ROOT / "scripts/deb_pack.sh", work, out, "1.0", "all"]

    def pack(path: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": path}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)

    assert pack(f"{programs}:{os.environ['PATH']}").returncode == -9
    assert list(out.iterdir()) == []
    done = pack(os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    made = [out / f"{package}_1.0_all.deb" for package in PACKAGES]
    assert done.stdout.split() == [str(path) for path in made] and sorted(out.iterdir()) == sorted(made)
    for path in made:
        assert subprocess.run(["dpkg-deb", "--info", path], capture_output=True, timeout=PATIENCE_S).returncode == 0


def test_the_build_makes_packages_by_that_script_alone() -> None:
    assert "scripts/deb_pack.sh" in (ROOT / "scripts/deb.sh").read_text()
    assert "dpkg-deb" not in (ROOT / "scripts/deb.sh").read_text().partition("set -eu")[2]
