"""The Debian packages in a Debian of their own: lint, install, use, upgrade, remove, purge without a trace.

Takes minutes and the package index, so it runs by ``make deb-test`` alone: with NODECTL_DEB=1, as root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed_wheel import commit_before

ROOT = Path(__file__).parents[1]
DEBIAN = ROOT / "build" / "debian"
PACKAGES = ("nodectl", "clusterctl", "clusterctl-page", "nodectl-twin")
BEFORE = ("nodectl", "clusterctl", "nodectl-twin")
"""Of the version before, in which the page was a part of clusterctl."""

pytestmark = [
    pytest.mark.skipif(not os.environ.get("NODECTL_DEB") or os.geteuid() != 0, reason="run by `make deb-test` as root"),
    pytest.mark.timeout(7200),
]

IGNORED = re.compile(
    r"/(var/lib/dpkg|var/cache|var/log|tmp|proc|sys|dev|run)(/|$)|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$"
    r"|/etc/.*\.lock$|/packages$|__pycache__"
)
"""What dpkg and the system keep for themselves; what is in the files of users is compared by name."""


def inside(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in that Debian."""
    enter = ["unshare", "--mount", "--pid", "--fork", "chroot", str(DEBIAN), "sh", "-c"]
    script = 'mount -t proc proc /proc; PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH LC_ALL=C.UTF-8; exec "$@"'
    return subprocess.run([*enter, script, "sh", *command], capture_output=True, text=True, timeout=3600)


def checked(*command: str) -> str:
    done = inside(*command)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def traces() -> tuple[set[str], set[str]]:
    """All paths that are not the system's own bookkeeping, and all users and groups."""
    paths = {str(path.relative_to(DEBIAN)) for path in DEBIAN.rglob("*")}
    names = {line.split(":")[0] for file in ("passwd", "group") for line in (DEBIAN / "etc" / file).read_text().split()}
    return {path for path in paths if not IGNORED.search(f"/{path}")}, names


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A checkout of this commit, with this one's environment and downloaded packages."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            (tree / ".venv").symlink_to(ROOT / ".venv")
            (tree / "build").mkdir()
            wheelhouse = ROOT / "build" / "wheelhouse"
            if wheelhouse.exists():
                shutil.copytree(wheelhouse, tree / "build" / "wheelhouse")
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


@pytest.fixture(scope="module")
def packages() -> dict[str, list[str]]:
    """Paths in there of the packages of this version, and of the one before it, as an older one."""
    done = subprocess.run([ROOT / "scripts" / "debian_chroot.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {}
    (DEBIAN / "packages").mkdir(exist_ok=True)
    with tree_of(commit_before()) as before:
        for name, tree, version in (("this", ROOT, ""), ("before", before, "0.0.1")):
            out = ROOT / "build" / ("deb" if tree == ROOT else "deb-before")
            if not os.environ.get("NODECTL_DEB_BUILT"):
                environment = os.environ | ({"DEB_VERSION": version} if version else {})
                command = [tree / "scripts" / "deb.sh", out]
                built = subprocess.run(command, capture_output=True, text=True, env=environment)
                assert built.returncode == 0, built.stderr
            made[name] = []
            for package in PACKAGES if tree == ROOT else BEFORE:
                (file,) = out.glob(f"{package}_*.deb")
                shutil.copy(file, DEBIAN / "packages" / file.name)
                made[name].append(f"/packages/{file.name}")
    for package in reversed(PACKAGES):  # what a test run that was interrupted has left
        inside("dpkg", "--purge", package)
    return made


def test_lintian_finds_no_error(packages: dict[str, list[str]]) -> None:
    done = inside("lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "5", *packages["this"])
    assert done.returncode == 0, done.stdout
    assert "E:" not in done.stdout


def test_the_emulator_is_in_no_package_for_production(packages: dict[str, list[str]]) -> None:
    listed = {
        name: checked("dpkg-deb", "--contents", file) for name, file in zip(PACKAGES, packages["this"], strict=True)
    }
    for name in ("nodectl", "clusterctl", "clusterctl-page"):
        assert not re.search(r"site-packages/(twin|lab)/|libnvidia-ml", listed[name])
    assert re.search(r"site-packages/twin/.*libnvidia-ml", listed["nodectl-twin"])
    assert not re.search(r"\.service$", listed["nodectl-twin"], re.MULTILINE)


def test_dashboards_and_rules_are_where_the_page_says(packages: dict[str, list[str]]) -> None:
    listed = checked("dpkg-deb", "--contents", packages["this"][1])
    made = (ROOT / "docs" / "monitoring").rglob("*.*")
    wanted = {f"./usr/share/clusterctl/{path.relative_to(ROOT / 'docs' / 'monitoring')}" for path in made}
    assert len(wanted) == 7 and wanted <= set(listed.split())
    assert "share/clusterctl" not in checked("dpkg-deb", "--contents", packages["this"][0])


def test_installed_used_upgraded_removed_and_purged_without_a_trace(packages: dict[str, list[str]]) -> None:
    before = traces()
    checked("dpkg", "-i", *packages["this"][:2])
    assert checked("nodectl", "--version").startswith("nodectl ")
    assert "nodectl.toml: ok: monitor" in checked("nodectl", "config", "check")
    done = inside("clusterctl", "config", "check")
    assert done.returncode == 2 and "cluster.toml:5: budget.w: is missing" in done.stderr, "until it names a budget"
    done = inside("nodectl", "demo")
    assert done.returncode == 1 and "install the package nodectl-twin" in done.stderr
    checked("clusterctl", "keys", "new", "cluster")
    keys = DEBIAN / "etc/nodectl/keys"
    owner = int(checked("id", "-u", "clusterctl"))
    assert {path.stat().st_uid for path in (keys, keys / "cluster.key")} == {owner}
    enabled = [path.name for path in (DEBIAN / "etc/systemd/system").rglob("*") if path.is_symlink()]
    assert [name for name in enabled if "nodectl" in name or "clusterctl" in name] == ["nodectl-restore.service"]
    settings = DEBIAN / "etc/nodectl/nodectl.toml"
    settings.write_text("period_ms = 200.0\n")
    done = inside("clusterctl", "open")
    assert done.returncode == 1 and "install the package clusterctl-page" in done.stderr
    checked("dpkg", "-i", *packages["this"][2:])
    assert "CLUSTERCTL_PAGE_ADMINS" in checked("clusterctl", "page", "--help")
    assert "curie" in checked("nodectl", "twin", "--help") + checked(
        "ls", "/opt/nodectl/lib/python3.11/site-packages/twin/machines"
    )

    checked("dpkg", "--remove", *reversed(PACKAGES))
    assert not (DEBIAN / "opt/nodectl").exists()
    assert settings.exists() and (keys / "cluster.key").exists(), "removed is not purged"
    checked("dpkg", "--purge", *reversed(PACKAGES))
    after = traces()
    gone = before[0] - after[0] - {"opt"}  # dpkg takes an empty /opt along: base-files makes it, and owns it not
    assert (after[0] - before[0], gone) == (set(), set())
    assert after[1] == before[1]


def test_an_upgrade_from_the_version_before_keeps_settings_and_keys(packages: dict[str, list[str]]) -> None:
    before = traces()
    checked("dpkg", "-i", *packages["before"])
    assert "0.0.1" in checked("dpkg-query", "--show", "nodectl")
    settings, key = DEBIAN / "etc/nodectl/nodectl.toml", DEBIAN / "etc/nodectl/keys/cluster.key"
    settings.write_text("period_ms = 200.0\n")
    checked("clusterctl", "keys", "new", "cluster")
    written = key.read_bytes()
    checked("dpkg", "-i", "--force-confold", *packages["this"])
    assert "0.0.1" not in checked("dpkg-query", "--show", *PACKAGES)
    assert settings.read_text() == "period_ms = 200.0\n", "settings of the site outlive an upgrade"
    assert "every 200 ms" in checked("nodectl", "config", "check") and key.read_bytes() == written
    assert checked("getent", "passwd", "nodectl").startswith("nodectl:"), "the agent's user is new"
    checked("dpkg", "--purge", *reversed(PACKAGES))
    after = traces()
    assert (after[0] - before[0], before[0] - after[0]) == (set(), set()) and after[1] == before[1]
