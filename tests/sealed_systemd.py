"""A systemd of one's own: PID 1 of new namespaces, sealed off from this machine, with nothing but the units under test.

All that exists on this machine is read-only in there; what an init writes to is private, and none of the distribution's
own units is started. A plain systemd here would clean this machine's /tmp and set its sysctls.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pytest

from cluster_agent.cli import main
from tests.installed_wheel import KEPT, install_wheel, this_wheel
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
CLONE_NEWNET: Final = 0x40000000
"""linux/sched.h."""

INIT = """
set -eu
stage=$1 cgroup=$2
mount --make-rprivate /
mount --bind "$stage" /srv
for place in $(awk '{print $2}' /proc/mounts | sort -u); do
    [ "$place" = /srv ] || [ "$place" = /proc ] || mount -o remount,bind,ro "$place" 2>/dev/null || true
done
for place in sys irq bus sysrq-trigger; do  # the rest of /proc is about processes, and is this namespace's own
    [ ! -e /proc/$place ] || { mount --bind /proc/$place /proc/$place; mount -o remount,bind,ro /proc/$place; }
done
for place in / /dev /proc/sys; do  # a mistake here must never reach the machine this runs on
    how=$(awk -v at="$place" '$2 == at {how = $4} END {print how}' /proc/mounts)
    case $how in ro*) ;; *) echo "not sealed: $place"; exit 97 ;; esac
done
for place in /run /var /tmp; do mount -t tmpfs tmpfs "$place"; done
mkdir -p /var/lib /var/tmp /run/systemd /tmp/dev/pts /tmp/dev/shm
for node in null zero full random urandom tty; do touch /tmp/dev/$node; mount --bind /dev/$node /tmp/dev/$node; done
mount -t devpts -o newinstance,ptmxmode=0666 devpts /tmp/dev/pts
ln -s pts/ptmx /tmp/dev/ptmx
touch /tmp/dev/console
mount --bind /srv/console /tmp/dev/console
mount --rbind /tmp/dev /dev
for place in etc opt sys usr/lib; do
    upper=/srv/$(echo $place | tr / -)
    mount -t overlay -o lowerdir=/$place,upperdir=$upper,workdir=$upper-work overlay /$place
done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
export container=nodectl-test
exec /lib/systemd/systemd --unit=nodectl-test.target --log-target=console --show-status=0
"""

DROP_IN = """[Unit]
DefaultDependencies=no
[Service]
StandardOutput=append:/srv/log
StandardError=append:/srv/log
"""
"""What every unit gets in there: no ordering against units that are not there, and a log that the test can read."""


class SealedSystemd:
    """``with`` it, systemd runs. ``stage`` is /srv in there; its ``etc``, ``opt`` and ``sys`` cover the machine's."""

    def __init__(self, stage: Path, cgroup_root: Path) -> None:
        self.stage = stage
        self.cgroup = cgroup_root / f"nodectl-test-{os.getpid()}"
        tops = ("etc", "opt", "sys", "usr-lib")
        for place in ("etc/systemd/system", *tops, *(f"{top}-work" for top in tops)):
            (stage / place).mkdir(parents=True, exist_ok=True)
        (stage / "init.sh").write_text(INIT)
        self._wanted: list[str] = []

    def add(self, unit: Path, drop_in: str = "", replace: dict[str, str] | None = None, is_wanted: bool = True) -> None:
        """A unit, which starts with systemd if it ``is_wanted``. ``replace``: texts of the file that have to differ."""
        text = unit.read_text()
        for old, new in (replace or {}).items():
            assert old in text
            text = text.replace(old, new)
        units = self.stage / "etc/systemd/system"
        (units / unit.name).write_text(text)
        (units / f"{unit.name}.d").mkdir()
        common = DROP_IN if unit.suffix == ".service" else DROP_IN.partition("[Service]")[0]
        (units / f"{unit.name}.d/test.conf").write_text(common + drop_in)
        self._wanted += [unit.name] if is_wanted else []
        wants = " ".join(self._wanted)
        (units / "nodectl-test.target").write_text(f"[Unit]\nDefaultDependencies=no\nWants={wants}\n")

    def __enter__(self) -> Self:
        self.cgroup.mkdir()
        namespaces = "--pid --mount --uts --ipc --cgroup --net --fork --mount-proc --kill-child"
        enter = f'echo $$ > "{self.cgroup}/cgroup.procs"; exec unshare {namespaces} sh "$@"'
        with (self.stage / "console").open("w") as console:
            self.process = subprocess.Popen(
                ["sh", "-c", enter, "sh", str(self.stage / "init.sh"), str(self.stage), str(self.cgroup)],
                stdout=console,
                stderr=console,
                stdin=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # the kernel ends a PID namespace with its init
        self.process.wait()
        for attempt in range(50):
            leftovers = sorted((path for path in self.cgroup.rglob("*") if path.is_dir()), reverse=True)
            try:
                for path in (*leftovers, self.cgroup):
                    path.rmdir()
                return
            except OSError:  # its processes are still being taken down
                time.sleep(0.02 * (attempt + 1))

    @property
    def log(self) -> str:
        """What the services and systemd itself have printed."""
        log = self.stage / "log"
        return (log.read_text() if log.exists() else "") + (self.stage / "console").read_text()

    def assert_comes(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
        """Poll: there is no bus in there to ask."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, f"{what} did not come:\n{self.log}"
            time.sleep(0.02)

    def pids(self, word: str) -> list[int]:
        """Processes in there whose command line has this word, by the numbers that they have on this machine."""
        found = []
        for folder, _, names in os.walk(self.cgroup):  # which passes over cgroups that end meanwhile
            for entry in [Path(folder, "cgroup.procs")] if names else []:
                with contextlib.suppress(OSError):
                    found += [int(pid) for pid in entry.read_text().split() if word.encode() in _command(pid)]
        return found

    def command(self, *command: str) -> list[str]:
        """What runs a command in there, next to the services, as root."""
        self.assert_comes(lambda: b"systemd" in Path(f"/proc/{self._init()}/cmdline").read_bytes(), "systemd")
        return ["nsenter", f"--target={self._init()}", "--mount", "--pid", "--net", "--ipc", "--uts", *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in there to its end."""
        return subprocess.run(self.command(*command), capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")

    def fetched(self, port: int) -> str:
        """What an HTTP server in there shows Prometheus; empty while nobody answers. A thread of ours asks, which
        enters the network alone: a program started for each look would keep the machine from what is waited for."""

        def ask() -> str:
            with open(f"/proc/{self._init()}/ns/net") as network:
                if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
                connection.request("GET", "/metrics")
                return connection.getresponse().read().decode()

        with ThreadPoolExecutor(1) as thread:  # which ends with its network
            try:
                return thread.submit(ask).result()
            except (OSError, http.client.HTTPException):
                return ""

    def asked(self, *arguments: str) -> Any:
        """What ``clusterctl`` says as JSON of the cluster agent in there; None while nobody answers. In this process,
        for the same reason: those that wait ask often."""
        place = f"/proc/{self._init()}/root/run/clusterctl/clusterctl.sock"
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            status = main([*arguments, "--json", "--socket", place])
        return json.loads(said.getvalue()) if status == 0 else None

    def _init(self) -> str:
        """PID 1 in there, by its number on this machine; "self" before it is there."""
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().strip() or "self"


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


def cgroup_root() -> Path | None:
    """Where cgroup v2 is mounted."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)


Kind = TypeVar("Kind", bound=SealedSystemd)


def sealed_systemd(stage: Path, kind: type[Kind] = SealedSystemd) -> Kind:
    """One that can run here; skips with the reason."""
    found = cgroup_root()
    if os.geteuid() != 0:
        pytest.skip("a systemd of one's own needs root")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("systemd is missing: install systemd")
    if found is None or not Path("/srv").is_dir():
        pytest.skip("a systemd of one's own needs a cgroup v2 hierarchy and an empty /srv to stand on")
    hidden = ("/tmp/", "/var/", "/run/", "/dev/", "/srv/")
    if str(ROOT).startswith(hidden) or sys.executable.startswith(hidden):
        pytest.skip(f"{ROOT} is where that systemd has its private files; check the project out elsewhere")
    return kind(stage, found)


NEEDED = (
    *("click", "cffi", "_cffi_backend*", "msgspec", "numpy", "numpy.libs", "psutil", "pynvml.py"),
    *("zmq", "pyzmq.libs", "prometheus_client"),
)
"""What the product imports: names below site-packages."""

UNUSED_S = 86_400.0
"""An environment that nobody has copied for so long is one of an earlier tree."""


def install(stage: Path, wheel: Path | None = None, place: str = "opt") -> Path:
    """The product's wheel (of this tree, if none is given) in /opt/nodectl in there: a virtual environment of the
    system's Python, which every user may read; the restorer is in /usr/lib/nodectl. What the product needs is copied
    from the environment that runs the tests. ``place``: where below the stage it waits, if it is to be moved to /opt
    later. Returns the environment."""
    python = "/usr/bin/python3"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([python, "-c", show], capture_output=True, text=True)
    if found.stdout.strip() != version:
        pytest.skip(f"{python} is not Python {version}: its modules are not those of the tests")
    root = stage / place / "nodectl"
    root.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(_environment(wheel or this_wheel(), python, version)), str(root)], check=True)
    restorer = root / "lib" / f"python{version}" / "site-packages" / "nodectl" / "nodectl-restorer"
    if restorer.exists():  # earlier versions had none
        (stage / "usr-lib" / "nodectl").mkdir(parents=True, exist_ok=True)
        shutil.copy2(restorer, stage / "usr-lib" / "nodectl")
    return root


def _environment(wheel: Path, python: str, version: str) -> Path:
    """One with this wheel, made once next to it, with the byte code of all modules: nothing in there writes any."""
    import zmq

    packages = Path(zmq.__file__).parents[1]
    kept = wheel.parent / "environment"
    if kept.exists():
        os.utime(kept)
        return kept
    for old in KEPT.glob("*/environment"):
        if time.time() - old.stat().st_mtime > UNUSED_S:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent) as work:
        made = Path(work) / "nodectl"
        subprocess.run([python, "-m", "venv", "--without-pip", str(made)], check=True)
        site = made / "lib" / f"python{version}" / "site-packages"
        for name in NEEDED:
            for path in packages.glob(name):
                ignored = shutil.ignore_patterns("tests", "*.pyi", "*.h", "*.a")
                copy = site / path.name
                shutil.copytree(path, copy, ignore=ignored) if path.is_dir() else shutil.copy2(path, copy)
        install_wheel(wheel, made, "/opt/nodectl")
        with contextlib.suppress(OSError):  # another process has made it meanwhile
            made.rename(kept)
    return kept
