"""Mounts and processes of others have names of any bytes; a mount may have none at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodectl.jobs import cgroups, proc

OWN = (
    b"9:freezer:/\n8:pids:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service\n"
)
HYBRID = (
    b"24 1 0:21 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
    b"25 24 0:22 / /sys/fs/cgroup/uni\\040fied rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    b"26 24 0:23 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    b"30 24 0:27 / /sys/fs/cgroup/freezer rw - cgroup  rw,freezer\n"
    b"242 45 0:66 / /tmp/bb rw,relatime shared:212 - tmpfs  rw,seclabel\n"
    b"243 45 0:67 / /data/caf\xe9\\040au\\011lait rw - nfs server:/x rw\n"
)


def test_the_cgroups_of_a_hybrid_hierarchy_are_found_among_odd_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/self/cgroup": OWN, "/proc/self/mountinfo": HYBRID}
    monkeypatch.setattr(Path, "read_bytes", lambda path: texts[str(path)])
    assert cgroups.mounts() == [
        cgroups.Mount(Path("/sys/fs/cgroup/uni fied/system.slice/a.service"), 2),
        cgroups.Mount(Path("/sys/fs/cgroup/freezer"), 1),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_a_real_mount_without_a_source_and_with_odd_bytes_hides_nothing(tmp_path: Path) -> None:
    odd = bytes(tmp_path / "a b") + b"\xe9"
    Path(odd.decode(errors="surrogateescape")).mkdir()
    found = "from nodectl.jobs import cgroups; from pmu import system; from twin.serve import mounts;"
    found += "print(cgroups.usable(), system._file_system('0:0'), len(list(mounts.listed())) > 1)"
    mounted = b'mount -t tmpfs "" "$0" && exec "$1" -c "$2"'
    command = ["unshare", "--mount", "sh", "-c", mounted, odd, sys.executable, found]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"


def test_a_process_of_any_name_is_seen_as_any_other() -> None:
    """A name is what its owner likes: one of another user must not hide all that live, nor end who looks."""
    name = b"a) R \xff\n1 2"
    code = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as odd:
        assert odd.stdout and odd.stdout.readline()
        found = proc.process(odd.pid)
        assert found is not None and (found.pid, found.parent) == (odd.pid, os.getpid())
        assert odd.pid in [one.pid for one in proc.all_processes()]
        odd.communicate()
