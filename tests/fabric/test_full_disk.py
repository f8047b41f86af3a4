"""A disk that is full when something starts is one line that names the file and says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SMALL = 'mount -t tmpfs -o size=64k none "$1" && head -c "$2" /dev/zero > "$1/fill" && shift 2 && exec "$@"'
"""A file system of 64 KiB, filled, in a mount namespace that ends with the command."""

if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
    pytest.skip("mount namespaces need root", allow_module_level=True)


def on_a_full_disk(folder: Path, *command: str, filled: int = 60_000) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", SMALL, "sh", str(folder), str(filled), sys.executable, "-m", *command],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_cluster_agent_whose_store_has_no_room_says_so_in_one_line(tmp_path):
    small = tmp_path / "small"
    config = tmp_path / "cluster.toml"
    config.write_text(
        f'listen = "tcp://127.0.0.1:1"\ninsecure = true\nstore = "{small}/cluster.db"\nsocket = "{tmp_path}/ctl.sock"\n'
        "[budget]\nw = 1000.0\n[nodes]\ntdp_w = 300.0\n"
    )
    done = on_a_full_disk(small, "cluster_agent.cli", "serve", "--config", str(config))
    assert done.returncode == 1
    assert done.stderr in {
        f"clusterctl serve: {small}/cluster.db: cannot open the store: database or disk is full: make room there\n",
        f"clusterctl serve: {small}/cluster.db-log: cannot write the store: No space left on device: make room there\n",
    }


def test_a_key_that_finds_no_room_is_named(tmp_path):
    small = tmp_path / "small"
    done = on_a_full_disk(small, "cluster_agent.cli", "keys", "new", "n01", "--dir", f"{small}/keys", filled=65_536)
    assert done.returncode == 1
    assert done.stderr == f"clusterctl keys: {small}/keys/n01.key: cannot write the key: No space left on device\n"


LIVES = (
    'mkdir -p "$1/store" && mount -t tmpfs -o size=4m none "$1/store" && shift &&'
    ' { "$PYTHON" -P -m tests.fabric.full_disk_head "$@"; rm "$1/store/fill";'
    ' "$PYTHON" -P -m tests.fabric.full_disk_head "$1"; }'
)
"""One cluster agent on a disk that becomes full, which is killed; then there is room, and the next one starts."""


def lived_through(folder: Path, seconds: int, *commands: str) -> tuple[dict[str, Any], dict[str, Any]]:
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", LIVES, "sh", str(folder), str(folder), str(seconds), *commands],
        capture_output=True, text=True, timeout=2 * PATIENCE_S, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, then = done.stdout.splitlines()
    return json.loads(first), json.loads(then)


def test_a_budget_that_a_full_disk_refuses_is_not_in_force_after_a_kill(tmp_path):
    commands = ["submit", "budget 750", "budget 760", "budget 770", "submit", "drain n0"]
    first, then = lived_through(tmp_path, 0, *commands)
    answers = list(zip(commands, first["answers"], strict=True))
    refused = [command for command, answer in answers if "refused" in answer]
    assert {"budget 760", "budget 770", "drain n0"} <= set(refused), "SQLite lacks what came before"
    assert all("make room there" in answer for _, answer in answers if "refused" in answer)
    done = [command for command, answer in answers if "refused" not in answer]
    assert len(then["jobs"]) == done.count("submit") and then["drained"] == {}
    changes = [f"set {command.split()[1]} W by hand" for command in done if "budget" in command]
    assert then["changes"] == changes[::-1]
    assert then["budget"] == (750.0 if changes else 700.0) == first["budget"]


def test_a_full_disk_lets_a_budget_be_lowered_renews_caps_and_is_one_alarm(tmp_path):
    commands = ["submit", "submit", "budget 900", "budget 600", "budget 500", "budget 800"]
    first, then = lived_through(tmp_path, 35, *commands)
    assert ["refused" in answer for answer in first["answers"][2:]] == [True, False, False, True]
    assert (first["budget"], then["budget"]) == (500.0, 500.0)
    assert then["changes"] == ["set 500 W by hand", "set 600 W by hand"]
    assert sum(first["caps_w"][0]) == 700.0 and sum(first["caps_w"][-1]) == 500.0
    assert all(sum(after) <= sum(before) for before, after in zip(first["caps_w"], first["caps_w"][1:], strict=False))
    alarms = [line for line in first["said"] if line.startswith("ALARM")]
    assert len(alarms) == 1 and "no cap is raised" in alarms[0] and "make room there" in alarms[0]
    assert not any("the alarm is over" in line for line in first["said"]) and len(first["alarms"]) == 1


def test_a_feed_that_lowers_the_budget_is_followed_on_a_full_disk_and_one_that_raises_it_waits(tmp_path):
    (tmp_path / "feed").write_text("700\n")
    first, then = lived_through(tmp_path, 10, "submit", "submit", "feed 650", "feed 690", "drain n0")
    assert first["budget"] == 650.0, "and the agent has not ended"
    assert then["changes"] == ["690 W", "650 W"], "the next one follows it to the end, as there is room"
    assert then["budget"] == 690.0
