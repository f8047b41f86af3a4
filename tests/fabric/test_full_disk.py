"""A disk that is full when something starts is one line that names the file and says what to do."""

import os
import subprocess
import sys
from pathlib import Path

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
        f"clusterctl serve: {small}/cluster.db: cannot {verb} the store: database or disk is full: make room there\n"
        for verb in ("open", "write")
    }


def test_a_key_that_finds_no_room_is_named(tmp_path):
    small = tmp_path / "small"
    done = on_a_full_disk(small, "cluster_agent.cli", "keys", "new", "n01", "--dir", f"{small}/keys", filled=65_536)
    assert done.returncode == 1
    assert done.stderr == f"clusterctl keys: {small}/keys/n01.key: cannot write the key: No space left on device\n"
