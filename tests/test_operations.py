"""The command blocks of docs/operations.md, run in their order under a real systemd.

What only the package index can give is there already: lines that make an environment or call pip take this tree's wheel
instead. The new head is the same machine without what it had as the old one: ``ssh`` and ``scp`` to it act here, and
after the copy the old head's settings and store are removed. Blocks of type ``console`` are not run.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nodectl.commands.run import configure
from tests.nodectl.booted_node import FOUND_UW, LIMIT, Site, add_meter, hardware
from tests.sealed_systemd import DROP_IN, ROOT, install, sealed_systemd

pytestmark = pytest.mark.timeout(3600)  # a wheel is built, once, which is long on a busy machine

PAGE = ROOT / "docs" / "operations.md"
NODE, HEAD = ("agent", "writer", "restore", "metrics"), ("clusterctl", "clusterctl-metrics")
UNITS = (*(f"nodectl-{name}" for name in NODE), *HEAD)
"""All of them: one without its drop-in would pull in the distribution's own units, which tidy /dev."""
FROM_INDEX = re.compile(r"^(python3 -m venv /opt/nodectl|/opt/nodectl/bin/pip install .*)$", re.MULTILINE)
ON_NEW_HEAD = re.compile(r"^ssh new-head (.*)$", re.MULTILINE)
TO_NEW_HEAD = re.compile(r"^scp (.*) new-head:(\S+)$", re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """(heading, commands) of each block that is run."""
    found, heading, lines = [], "", None
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif lines is None and re.fullmatch(r"```sh( pip| head)?", line):
            lines = []
        elif lines is not None and line == "```":
            found.append((heading, "\n".join(lines)))
            lines = None
        elif lines is not None:
            lines.append(line)
    return found


def test_each_section_of_the_page_has_a_block_that_is_run() -> None:
    headings = [line[3:] for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    only_words = {"When it fails", "A page for people"}  # its unit: tests/cluster_agent/test_clusterctl_service.py
    assert [one for one in headings if one not in only_words] == list(dict.fromkeys(heading for heading, _ in blocks()))


def test_the_settings_of_a_node_of_a_cluster_can_be_copied(tmp_path: Path) -> None:
    settings = tmp_path / "nodectl.toml"
    settings.write_text(PAGE.read_text().partition("```toml\n")[2].partition("```")[0])
    found = configure(settings, {})
    assert (found.cluster.url, found.cluster.name, found.writes) == ("tcp://10.0.0.1:7410", "n01", True)


def test_a_purge_takes_the_key_that_the_page_gives_a_node(tmp_path: Path) -> None:
    node = tmp_path / "etc/nodectl/node"
    node.mkdir(parents=True)
    for name in ("node.key", "cluster.pub"):
        assert f"/etc/nodectl/node/{name}" in PAGE.read_text()
        (node / name).touch()
    (tmp_path / "bin").mkdir()
    for command in ("getent", "userdel", "deb-systemd-helper"):
        (tmp_path / "bin" / command).symlink_to("/bin/false")
    script = (ROOT / "debian/nodectl/postrm").read_text()
    script = re.sub(r"(?<![\w/])/(etc|var|run)/", r"@HERE@/\1/", script)
    assert not re.search(r"\s/(etc|var|run)\b", script), "it must not reach this machine's own"
    script = script.replace("@HERE@", str(tmp_path))
    done = subprocess.run(
        ["sh", "-c", script, "postrm", "purge"], env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "etc").iterdir()) == []


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    site = sealed_systemd(tmp_path, Site)
    install(tmp_path, place="new")
    hardware(tmp_path)
    add_meter(site)
    units = tmp_path / "etc/systemd/system"
    for unit in UNITS:
        (units / f"{unit}.service.d").mkdir()
        (units / f"{unit}.service.d/test.conf").write_text(DROP_IN + "Environment=PYTHONDONTWRITEBYTECODE=1\n")
    (units / "nodectl-writer.socket.d").mkdir()
    (units / "nodectl-writer.socket.d/test.conf").write_text("[Unit]\nDefaultDependencies=no\n")
    with site:
        site.assert_comes(lambda: site.run("systemctl", "list-units").returncode == 0, "systemd")
        found = blocks()
        following = [heading for heading, _ in found[1:]] + [""]
        for (heading, commands), after in zip(found, following, strict=True):
            script = FROM_INDEX.sub("rm -rf /opt/nodectl; cp -a /srv/new/nodectl /opt/nodectl", commands)
            script = ON_NEW_HEAD.sub(r"\1", script)
            script = TO_NEW_HEAD.sub(r"cp \1 \2; rm -rf /var/lib/clusterctl /etc/nodectl", script)
            script = script.replace("/usr/local/bin", "/opt/bin")  # /usr is read-only in there
            done = site.run("sh", "-exc", f"mkdir -p /opt/bin; PATH=/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin\n{script}")
            assert done.returncode == 0, f"{heading}:\n{done.stdout}\n{done.stderr}\n{site.log}"
            if heading in AFTER and heading != after:
                AFTER[heading](site)
    left = [path for unit in UNITS for path in units.rglob(f"{unit}*") if path.name != "test.conf" and path.is_file()]
    assert left == []


def _alone(site: Site) -> None:
    site.assert_comes(lambda: site.limit_w == 200.0, "the cap of the settings")


def _joined(site: Site) -> None:
    def is_done() -> bool:
        return any(row["state"] == "done" for row in site.asked("jobs", "--all") or [])

    site.assert_comes(is_done, "the end of the job")
    site.assert_comes(lambda: any(row["state"] == "capped" for row in site.asked("nodes") or []), "a grant")


def _watched(site: Site) -> None:
    for port, metric in ((9742, "nodectl_up 1.0"), (9741, "clusterctl_up 1.0")):
        site.assert_comes(lambda port=port, metric=metric: metric in site.fetched(port), metric)  # type: ignore[misc]


def _removed(site: Site) -> None:
    assert (site.stage / "sys" / LIMIT).read_text().strip() == str(FOUND_UW)


AFTER: dict[str, Callable[[Site], None]] = {
    "A node by itself": _alone,
    "A node joins": _joined,
    "Move the head": _joined,
    "Watch": _watched,
    "Remove": _removed,
}
"""What is looked at after the last block of a section, beyond the exit status of its commands."""
