"""Imports point one way (docs/architecture.md): the product never knows the twin, a reader never knows a knob."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from foundation.shell.command_line import EXTRAS

ROOT = Path(__file__).parent.parent
OURS = (
    "foundation",
    "pmu",
    "nodectl",
    "twin",
    "firmware_bridge",
    "cluster_agent",
    "calibration",
    "hil_tests",
    "lab",
    "tests",
)

ALLOWED: dict[str, set[str]] = {
    "foundation": set(),
    "pmu": set(),
    "firmware_bridge": set(),
    "twin": {"foundation", "pmu"},  # pmu: the types of the ports that it stands in for
    "nodectl": {"foundation", "pmu", "firmware_bridge"},
    "calibration": {"foundation", "firmware_bridge", "nodectl", "pmu"},
    "cluster_agent": {"foundation"},
    "hil_tests": {"twin", "firmware_bridge", "tests"},
    # and nothing imports it
    "lab": {"foundation", "pmu", "nodectl", "firmware_bridge", "calibration", "cluster_agent", "twin"},
}

CLOCKS = ("time", "datetime")


def imported_packages(source: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source.read_text(), str(source))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.partition(".")[0]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for source in sorted((ROOT / package).rglob("*.py")):
        name = source.relative_to(ROOT).as_posix()
        allowed = ALLOWED[package] | {package}
        wrong += [
            f"{name}:{line} imports {top}"
            for line, top in imported_packages(source)
            if top in OURS and top not in allowed
        ]
    assert wrong == []


def test_the_agent_knows_of_its_writer_process_only_the_near_end() -> None:
    """So what the process does with root's rights can be read, and changed, without the agent."""
    near = {f"nodectl.writer_process.{name}" for name in ("remote_writer", "root_files", "writer_link")}
    itself = {"nodectl/commands/writer_service.py"}
    found: dict[str, set[str]] = {}
    for source in sorted((ROOT / "nodectl").rglob("*.py")):
        name = source.relative_to(ROOT).as_posix()
        if name.startswith("nodectl/writer_process/") or name in itself:
            continue
        for node in ast.walk(ast.parse(source.read_text(), str(source))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nodectl.writer_process"):
                found.setdefault(name, set()).add(node.module or "")
    commands = {"nodectl/commands/run.py", "nodectl/commands/service_account.py"}
    assert set(found) == commands | {"nodectl/loop/agent.py", "nodectl/write/actuation.py"}
    assert set().union(*found.values()) == near


def test_the_store_knows_jobs_and_jobs_run_without_the_store() -> None:
    """Live jobs are given a ``JobStore``, whose type alone they name."""
    program = "import sys, cluster_agent.jobs.live_jobs as _; print(*(m for m in sys.modules if '.store' in m))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "cluster_agent.store" not in done.stdout


@pytest.mark.parametrize("module", ["nodectl.commands.run", "cluster_agent.serve.server"])
def test_what_runs_for_months_loads_neither_openssl_nor_what_reads_no_log_needs(module: str) -> None:
    """Each of these costs megabytes: OpenSSL comes with hashlib, hmac and secrets, numpy.ma with numpy's unique."""
    dear = {"_hashlib", "numpy.ma", "difflib", "tempfile"}
    program = f"import sys, {module} as _; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not dear & set(done.stdout.split())


def test_the_binding_of_nvml_brings_no_compressors_until_it_looks_for_a_library() -> None:
    pytest.importorskip("pynvml", reason="the package nvidia-ml-py is not installed: pip install 'nodectl[nvidia]'")
    program = (
        "import sys; from pmu.system import load_nvml; load_nvml(); import pynvml; print(*sys.modules);"
        "found = pynvml.find_library('c'); import ctypes.util; print(found == ctypes.util.find_library('c') != None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, is_same = done.stdout.splitlines()
    assert "pynvml" in loaded.split() and not {"tempfile", "shutil", "lzma", "bz2"} & set(loaded.split())
    assert is_same == "True"


def test_calibration_runs_without_a_module_of_the_twin() -> None:
    """Else it could look up what it is to measure: an emulated node's truth stays behind the port of the kernels."""
    sources = sorted((ROOT / "calibration").rglob("*.py"))
    names = [source.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for source in sources]
    assert "calibration.kernels.emulated" in names
    script = f"import importlib, sys\n[importlib.import_module(name) for name in {names}]\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "calibration" in loaded and not loaded & {"twin", "lab"}


def test_calibration_reads_no_file_of_the_twin() -> None:
    """Neither machines nor workloads, nor their tables by another way than an import."""
    texts = {source: source.read_text() for source in sorted((ROOT / "calibration").rglob("*.py"))}
    assert len(texts) > 5
    parts = "|".join(path.stem for path in (ROOT / "twin").iterdir() if path.suffix in ("", ".py"))
    pattern = re.compile(rf"\btwin[./](?:{parts})\b|import_module|__import__")
    assert [source.name for source, text in texts.items() if pattern.search(text)] == []


def test_neither_ledger_nor_lease_reads_a_clock() -> None:
    """So no wall clock that jumps can move a deadline: time is given to them, by one that goes on through suspend."""
    sources = [
        *sorted((ROOT / "cluster_agent" / "budget").rglob("*.py")),
        ROOT / "nodectl/member/lease.py",
        ROOT / "foundation/wire/power_messages.py",
    ]
    assert len(sources) > 10
    read = [(source.name, top) for source in sources for _, top in imported_packages(source) if top in CLOCKS]
    assert read == []


BEHIND_THE_PORTS = {
    "pmu/build_native.py": "runs when the package is built",
    "pmu/descriptors.py": "counts the descriptors of its own process",
    "pmu/instruments/job_progress.py": "a file of a job, which no port serves",
    "pmu/instruments/job_hints.py": "the same",
    "pmu/instruments/kept.py": "keeps descriptors of the real files, below the port",
    "pmu/instruments/perf_groups.py": "the native counters, below the port",
    "pmu/system.py": "the ports of a real machine",
}


def ways_around(source: Path) -> Iterator[str]:
    """Where a file could read files or a clock by itself."""
    calls = {"open", *(f"os.{name}" for name in ("open", "read", "pread", "write", "pwrite", "listdir", "scandir"))}
    for line, top in imported_packages(source):
        if top in ("time", "datetime", "pathlib", "glob", "io", "psutil", "socket", "subprocess"):
            yield f"{line}: import {top}"
    for node in ast.walk(ast.parse(source.read_text(), str(source))):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in calls:
            yield f"{node.lineno}: {called}"


def test_the_machine_is_reached_through_the_ports_alone() -> None:
    """What reads, decides or moves opens no file and reads no clock: else it would see the host below the twin."""
    rooms = [ROOT / "pmu", *(ROOT / "nodectl" / room for room in ("decide", "policies", "knobs"))]
    found: dict[str, list[str]] = {}
    for source in sorted(path for room in rooms for path in room.rglob("*.py")):
        if ways := list(ways_around(source)):
            found[source.relative_to(ROOT).as_posix()] = ways
    assert {name: ways for name, ways in found.items() if name not in BEHIND_THE_PORTS} == {}
    assert set(BEHIND_THE_PORTS) <= set(found), "an exemption that nothing needs any more"


def test_what_is_no_dependency_is_imported_from_an_extra_that_can_be_named() -> None:
    """So that whoever lacks it reads what to install; names of modules and of packages differ (zmq, pyzmq)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = {"": project["dependencies"], **project["optional-dependencies"]}
    packages = {extra: {_package(line) for line in lines} for extra, lines in given.items()}
    packages_of = packages_distributions()
    sources = [source for package in ALLOWED if package != "hil_tests" for source in (ROOT / package).rglob("*.py")]
    imported = {top for source in sources for _, top in imported_packages(source)}
    foreign = {top for top in imported | EXTRAS.keys() if top not in OURS and top not in sys.stdlib_module_names}
    assert {"numpy", "zmq"} <= foreign
    installed = [top for top in foreign if top in packages_of]
    assert [
        top for top in installed if not packages[EXTRAS.get(top, "")] & {_package(one) for one in packages_of[top]}
    ] == []


def _package(line: str) -> str:
    """The name in a line of dependencies, as indexes compare them."""
    found = re.match(r"[\w.-]+", line)
    assert found
    return found[0].lower().replace("_", "-")
