"""docs/extending.md as a reader follows it, and the example package that is no part of the product."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.scheduler.policies import registry as scheduler_policies
from foundation.shell.errors import NodectlError
from nodectl.policies import registry as node_policies
from tests.waiting import PATIENCE_S, within

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLE = ROOT / "examples" / "nodectl-example"
FILES = re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LOG = ROOT / "cluster_agent" / "samples" / "generated-500.swf"


def environment(**more: str) -> dict[str, str]:
    """As in an activated virtual environment, without what pip would fetch."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "NODECTL": str(ROOT), "PIP_NO_INDEX": "1", **more}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, built and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, folder / "source")  # which the build writes to
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder / "target")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder / "source")], check=True)
    return folder / "target"


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    given = environment(PYTHONPATH=str(site))
    return subprocess.run([sys.executable, "-m", *command], env=given, capture_output=True, text=True)


def test_the_page_leads_from_empty_files_to_tested_policies(tmp_path: Path) -> None:
    assert [name for name, _ in FILES if not name.startswith("test_")] == [
        "idle_low.py", "smallest_area.py", "equal_watts.py",
    ]  # fmt: skip
    assert len(BLOCKS) >= 4
    for name, text in FILES:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644)
    script = "set -eu\n" + "\n".join(BLOCKS)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for shown in ("smallest-area@", "idle-low", "all the same", "sha256"):
        assert shown in done.stdout, done.stdout


@pytest.mark.parametrize("name", [name for name, _ in FILES])
def test_the_page_shows_the_files_of_the_example(name: str) -> None:
    folder = EXAMPLE / ("tests" if name.startswith("test_") else "nodectl_example")
    kept = (folder / name).read_text().replace("nodectl_example.", "")
    assert dict(FILES)[name] == kept.replace('"idle-low")', '"./idle_low.py")')


def test_an_installed_package_is_listed_used_and_recorded(site: Path, tmp_path: Path) -> None:
    node, cluster = (run(site, f"{one}.cli", "policies") for one in ("nodectl", "cluster_agent"))
    assert f"from: nodectl-example 1.0 ({site}/nodectl_example/idle_low.py)" in node.stdout, node.stderr
    for file in ("smallest_area", "equal_watts"):
        assert f"from nodectl-example 1.0 ({site}/nodectl_example/{file}.py)" in cluster.stdout, cluster.stderr

    out = tmp_path / "out"
    chosen = "smallest-area:oldest_s=100"
    done = run(site, "cluster_agent.cli", "replay", str(LOG), "--policy", chosen, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert '"package": "nodectl-example"' in (out / "manifest.json").read_text()

    wrong = run(site, "nodectl.cli", "run", "--mode", "optimize", "--cpu-policy", "idle-low:below=2")
    assert (wrong.returncode, wrong.stderr) == (
        2, "nodectl run: --cpu-policy: idle-low: below has to be within 0 and 1\n",
    )  # fmt: skip


def test_an_installed_sharer_is_at_work_in_the_cluster_agent(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="install pyzmq")
    settings = tmp_path / "cluster.toml"
    settings.write_text(
        f'listen = "ipc://{tmp_path}/nodes"\ninsecure = true\nkeys = "{tmp_path}"\nstore = "{tmp_path}/a.db"\n'
        f'socket = "{tmp_path}/ctl.sock"\nsharer = "equal-watts:idle=share"\n'
        "[budget]\nw = 900.0\n[nodes]\ntdp_w = 400.0\n"
    )
    said = tmp_path / "said"
    command = [sys.executable, "-m", "cluster_agent.cli", "serve", "--config", str(settings)]
    with said.open("w") as file:
        agent = subprocess.Popen(command, env=environment(PYTHONPATH=str(site)), stdout=file, stderr=file)
        try:
            assert within(PATIENCE_S, lambda: "listening at" in said.read_text()), said.read_text()
        finally:
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(PATIENCE_S) == 0
    assert "sharer equal-watts:idle=share: nodectl-example 1.0, " in said.read_text()


def announce(folder: Path, package: str, group: str, name: str, text: str) -> None:
    """A package as pip leaves it: a module, and metadata with one entry point."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(text)
    about = folder / f"{module}-2.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:THING\n")


DOORS = [
    ("nodectl.policies", "bdpo-cpu", lambda name: node_policies.find(name, "cpu")),
    ("nodectl.policies", "fixed", lambda name: node_policies.find(name, "cpu")),
    ("clusterctl.policies", "easy", scheduler_policies.find),
    ("clusterctl.sharers", "aapc", sharers.find),
]


@pytest.mark.parametrize(("group", "ships", "find"), DOORS, ids=lambda one: str(one) if isinstance(one, str) else "")
def test_a_name_with_two_meanings_is_an_error_and_a_broken_package_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, ships: str, find: Callable[[str], Any]
) -> None:
    names = group.replace(".", "-") + "-" + ships
    announce(tmp_path, f"site-one-{names}", group, "ours", "THING = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NodectlError, match=rf"package site-one-{names}: {tmp_path}/.*\.py:1: THING is no "):
        find("ours")
    announce(tmp_path, f"site-two-{names}", group, "ours", "THING = 1\n")
    with pytest.raises(NodectlError, match=rf"'ours' is announced by site-one-{names} and by site-two-{names}"):
        find("ours")
    announce(tmp_path, f"site-three-{names}", group, "broken", "\n1 / 0\n")
    with pytest.raises(NodectlError, match=rf"package site-three-{names}: {tmp_path}/.*\.py:2: ZeroDivisionError"):
        find("broken")
    announce(tmp_path, f"site-four-{names}", group, ships, "THING = 1\n")
    with pytest.raises(NodectlError, match=rf"'{ships}' ships with nodectl, and the package site-four-{names}"):
        find(ships)
