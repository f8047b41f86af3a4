"""docs/security.md names tests that exist and bounds that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster_agent.budget import ledger
from cluster_agent.fabric import admin, descriptors, front_supervisor, people, router
from cluster_agent.serve.config import JobSettings
from foundation.wire import job_messages, link_options, power_messages
from nodectl.writer_process import remote_writer, writer_protocol

ROOT = Path(__file__).parents[1]
PAGE = re.sub(r"\s+", " ", (ROOT / "docs" / "security.md").read_text())
KIB = 1024


def unit_setting(unit: str, key: str) -> str:
    text = (ROOT / "systemd" / unit).read_text()
    found = re.search(rf"^{key}=(.*)$", text, re.MULTILINE)
    assert found
    return found[1]


def test_every_test_that_the_page_names_exists() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    names = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = re.findall(r"`((?:test_|…)[\w…]*)`", PAGE)
    assert len(named) > 50
    for one in named:
        parts = [re.escape(part) for part in one.split("…")]
        pattern = re.compile(".*".join(parts))
        assert any(pattern.fullmatch(name) for name in names), f"{one} is no test"
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        (r"lease, of (\S+) s or three periods", writer_protocol.LEASE_S),
        (r"after (\w+) losses in a minute", {3: "three"}[remote_writer.RESTARTS]),
        (r"the agent kills its own after (\d+) s", remote_writer.ANSWER_S),
        (
            r"watchdog kills the service's after (\d+) s",
            int(unit_setting("nodectl-writer.service", "WatchdogSec")[:-1]),
        ),
        (r"leases of up to (\d+) s", writer_protocol.LONGEST_LEASE_S),
        (r"(\d+) bytes at most", power_messages.MAX_BYTES),
        (r"(\d+) KiB for what a node says of its jobs", job_messages.UP["jobs"] / KIB),
        (r"(\d+) KiB for a job's start", job_messages.MAX_START / KIB),
        (r"each is given up after (\d+) s", link_options.HANDSHAKE_MS / 1000),
        (r"one descriptor each until then, of the (\d+) that the unit allows", descriptors.MOST),
        (r"of the (\d+) that the unit allows", int(unit_setting("clusterctl.service", "LimitNOFILE"))),
        (r"(\d+) messages a second and key", router.RATE),
        (r"(\d+) kinds a peer", router.COMPLAINTS),
        (r"(\d+ \d+) jobs a user", f"{JobSettings().jobs_per_user:,}".replace(",", " ")),
        (r"non-blocking, (\d+) s, 256 KiB", people.PATIENCE_S),
        (r"non-blocking, 5 s, (\d+) KiB", people.MAX_REQUEST / KIB),
        (r"(\d+) connections a user", admin.SHARE),
        (r"connections a user and (\d+) of all viewers", admin.VIEWERS),
        (r"believed once, within 2\^(\d+)", ledger.EPOCH_LEAP.bit_length() - 1),
        (r"bounded as nodes are: (\d+) KiB a request", people.LINK_REQUEST / KIB),
        (r"for (\d+) s \(TCP_USER_TIMEOUT", link_options.SILENT_MS / 1000),
        (r"hangs\*\* is killed after (\d+) s", front_supervisor.SILENT_S),
        (r"It may take (\d+) GiB of memory", front_supervisor.MEMORY >> 30),
    ],
)
def test_every_bound_on_the_page_is_the_codes(said: str, bound: object) -> None:
    found = re.search(said, PAGE)
    assert found, f"the page does not say {said!r}"
    assert found[1] == (bound if isinstance(bound, str) else f"{bound:g}"), said


def test_the_page_says_who_the_services_are() -> None:
    assert unit_setting("nodectl-agent.service", "User") == "nodectl"
    assert unit_setting("nodectl-agent.service", "CapabilityBoundingSet") == "CAP_PERFMON"
    assert "is the user `nodectl` with CAP_PERFMON and nothing else" in PAGE
    assert unit_setting("nodectl-writer.service", "User") == "root"
    assert unit_setting("nodectl-writer.service", "CapabilityBoundingSet") == "CAP_SYS_ADMIN"
    assert "the writer is root with CAP_SYS_ADMIN and nothing else" in PAGE
    for drop_in in ("controller.conf", "jobs.conf"):
        assert unit_setting(drop_in, "User") == "root" and f"`{drop_in}`" in PAGE
    assert unit_setting("nodectl-agent.service", "StartLimitBurst") == "5" and "five times in five minutes" in PAGE
