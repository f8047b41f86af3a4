"""nodectl-replay, the distribution for those who only replay: its wheel in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest

from cluster_agent.library import World, replay
from tests.installed_wheel import ROOT, replay_wheel

NEEDED: Final = {
    "cffi": ("cffi", "_cffi_backend*", "pycparser"),
    "click": ("click",),
    "msgspec": ("msgspec",),
    "numpy": ("numpy", "numpy.libs"),
}
"""What it requires, and the names of that below site-packages."""
SAMPLE: Final = "cluster_agent/samples/generated-500.swf"
PROGRAM: Final = """
import json, sys
from importlib.util import find_spec
import cluster_agent
from cluster_agent.library import World, replay
from pathlib import Path

names = ("nodectl", "pmu", "twin", "firmware_bridge", "calibration", "lab", "psutil", "zmq", "pynvml", "serial")
log = str(Path(cluster_agent.__file__).parent / "samples" / "generated-500.swf")
starts = [replay(World(log, machine=128), policy).start_s.tolist()
          for policy in ("easy", lambda queue, now_s: queue.width * 1.0)]
print(json.dumps([log, [name for name in names if find_spec(name)], starts]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and links to what it requires."""
    import numpy

    root = tmp_path_factory.mktemp("replay") / "environment"
    venv.create(root, with_pip=False, symlinks=True)
    (site,) = root.glob("lib/python3*/site-packages")
    packages = Path(numpy.__file__).parents[1]
    for name in (name for names in NEEDED.values() for name in names):
        for path in packages.glob(name):
            (site / path.name).symlink_to(path)
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--no-compile", "--disable-pip-version-check", str(replay_wheel())], check=True)
    return root


def run(environment: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of the environment, outside the tree."""
    program, *rest = command
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = environment / "bin" / program
    return subprocess.run([str(path), *rest], cwd=folder, env=clean, capture_output=True, text=True)


def test_it_replays_where_nothing_else_of_the_product_is(environment: Path, tmp_path: Path) -> None:
    done = run(environment, tmp_path, "python", "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    log, there, starts = json.loads(done.stdout)
    assert there == [] and log.startswith(str(environment))
    world = World(str(ROOT / SAMPLE), machine=128)
    policies = ("easy", lambda queue, now_s: queue.width * 1.0)
    assert starts == [replay(world, policy).start_s.tolist() for policy in policies]

    done = run(environment, tmp_path, "clusterctl", "replay", log, "--machine", "128", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "bounded slowdown" in done.stdout
    assert {"jobs.csv", "metrics.json", "manifest.json"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert "this needs pyarrow (pip install 'nodectl-replay[export]')" in done.stdout + done.stderr


@pytest.mark.parametrize("command", [("serve",), ("demo",), ("calibration", "compare"), ("keys", "list")])
def test_a_command_of_the_agent_says_what_to_install(environment: Path, tmp_path: Path, command: tuple[str]) -> None:
    done = run(environment, tmp_path, "clusterctl", *command)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith(": install nodectl in place of nodectl-replay\n")


def test_it_has_one_native_module_and_requires_what_replays_need() -> None:
    with zipfile.ZipFile(replay_wheel()) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        found = Parser().parsestr(wheel.read(metadata).decode())
    assert [name for name in names if ".so" in name or name.endswith((".c", ".h"))] == ["cluster_agent/_native.abi3.so"]
    assert {name.partition("/")[0] for name in names} - {metadata.partition("/")[0]} == {"cluster_agent", "foundation"}
    required = [one for one in found.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert sorted(one.partition(">")[0] for one in required) == sorted(NEEDED)
