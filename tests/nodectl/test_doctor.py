import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from foundation.boot import boot_id
from nodectl.cli import main
from nodectl.commands import doctor
from nodectl.commands.doctor import grouped
from nodectl.knobs.known_tools import TOOLS
from nodectl.write.lock import NodeLock
from nodectl.write.restore import save_path
from nodectl.write.saves import Save
from pmu.findings import Finding
from twin.faults.active import Fault, Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin


def knob(name: str, why: str = "", writable: bool = True) -> Finding:
    return Finding(name, "knob", True, True, writable, False, why)


@pytest.fixture
def examined(monkeypatch, capsys):
    """Runs doctor on an emulated machine and gives its report as text and as JSON."""

    def examine(machine: str, *faults: Fault, settings: Path | None = None, prepare=lambda inside: None):
        twin = Twin(load_machine(machine))
        options = ["--config", str(settings)] if settings else []
        with InProcess(twin, Faults(twin, faults)) as inside:
            prepare(inside)
            monkeypatch.setattr(doctor, "system_ports", lambda: inside.ports)
            assert main(["doctor", *options]) == 0
            text = capsys.readouterr().out
            assert main(["doctor", *options, "--json"]) == 0
            return text, json.loads(capsys.readouterr().out)

    return examine


def test_equal_rows_of_numbered_things_are_shown_as_one():
    rows = [knob(f"cpu/policy{n}/max_khz") for n in (0, 1, 2, 3, 7)]
    assert [row.name for row in grouped(rows)] == ["cpu/policy0..3,7/max_khz"]


def test_rows_that_differ_in_more_than_numbers_stay_apart():
    rows = [knob("gpu/0/x"), knob("gpu/1/x", "lost", writable=False), knob("gpu/2/x"), knob("gpu/2/y")]
    assert [row.name for row in grouped(rows)] == ["gpu/0,2/x", "gpu/1/x", "gpu/2/y"]


def test_reasons_that_differ_in_numbers_only_are_shown_once():
    rows = [knob("a0", "/sys/a0 is not writable"), knob("a1", "/sys/a1 is not writable")]
    assert [(row.name, row.why) for row in grouped(rows)] == [("a0..1", "/sys/a0..1 is not writable")]


def test_every_sensor_and_knob_of_a_gpu_node_is_listed(examined):
    text, report = examined("xh2415")
    assert (report["cpus"], len(report["gpus"])) == (96, 4)
    knobs = {row["name"]: row for row in report["knobs"]}
    assert knobs["cpu/policy0/max_khz"]["writable"]
    assert not knobs["gpu/3/sm_clock_mhz"]["readable"]
    assert "NVML cannot say whether clocks are locked" in knobs["gpu/3/sm_clock_mhz"]["why"]
    assert "gpu/0..3/sm_clock_mhz" in text
    assert report["runs"] == {"monitor": "yes", "optimize": "yes"}


def test_a_zen_2_says_where_its_reference_cycles_come_from(examined):
    _, report = examined("xh2415")
    row = next(row for row in report["sensors"] if row["name"] == "reference-cycles")
    assert row["present"] and row["why"]


def test_the_sites_ceilings_are_shown_with_what_the_hardware_would_take(examined):
    text, report = examined("skylake-6146")
    assert report["ceilings"]["rapl/package-0/long_term_uw"] == 165_000_000
    assert "ceiling: rapl/package-0..1/long_term_uw" not in text, "at the hardware's most"

    def limit(inside: InProcess) -> None:
        for package in (0, 1):
            zone = f"/sys/devices/virtual/powercap/intel-rapl/intel-rapl:{package}"
            inside.ports.files.write(f"{zone}/constraint_0_power_limit_uw", "95000000")

    text, report = examined("skylake-6146", prepare=limit)
    line = "ceiling: rapl/package-0..1/long_term_uw: 95000000 uW (the hardware: 165000000 uW): no cap, grant or policy"
    assert line in text and report["ceilings"]["rapl/package-1/long_term_uw"] == 95_000_000


def test_a_gpu_whose_lock_nobody_has_declared_is_said_to_be_left_alone(examined, tmp_path):
    line = "clock lock of the site: gpu/0..3: "
    text, report = examined("xh2415")
    assert f"{line}not declared: a run observes it under load, and leaves the GPU alone until it knows" in text
    assert any(row.startswith(line) for row in report["others"])
    settings = tmp_path / "nodectl.toml"
    settings.write_text("[gpu]\nlocked_clock_mhz = { 0 = 1095, 3 = 0 }\n")
    text, _ = examined("xh2415", settings=settings)
    assert "clock lock of the site: gpu/0: declared as locked to 1095 MHz" in text
    assert "clock lock of the site: gpu/1..2: not declared" in text
    assert "clock lock of the site: gpu/3: declared as not locked" in text


def test_applications_clocks_below_their_default_are_named_and_are_no_lock_of_the_site(examined):
    assert "applications clocks" not in examined("xh2415")[0]

    def apply(inside: InProcess) -> None:
        for index in (1, 2):
            nvml = inside.ports.nvml
            nvml.nvmlDeviceSetApplicationsClocks(nvml.nvmlDeviceGetHandleByIndex(index), 1593, 1005)

    text, report = examined("xh2415", prepare=apply)
    line = "applications clocks: gpu/1..2: set to 1005 MHz: no lock runs faster; `nvidia-smi -rac` resets them"
    assert line in text.splitlines() and line in report["others"]
    assert "clock lock of the site: gpu/0..3: not declared" in text


def test_a_running_tool_that_writes_the_same_knobs_is_named(examined, monkeypatch):
    monkeypatch.setattr("nodectl.knobs.known_tools.running", lambda files: [TOOLS[0], TOOLS[2]])
    text, _ = examined("curie")
    assert "tuned is running and writes cpu/*, epp/*, uncore/* too: stop it before mode optimize" in text
    assert "thermald is running and writes cpu/*, rapl/* too" in text


def test_a_locked_limit_is_shown_as_locked(examined):
    limits = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/constraint_*"
    text, report = examined("curie", Fault("locked", limits))
    locked = [row["name"] for row in report["sensors"] + report["knobs"] if row["locked"]]
    assert any("package-0" in name for name in locked)
    assert "LOCKED" in text


def test_what_is_missing_is_there_with_its_reason_and_the_verdict_follows(examined):
    text, report = examined("curie", Fault("missing", "perf:instructions"))
    row = next(row for row in report["sensors"] if row["name"] == "instructions")
    assert not row["present"] and "perf_event_open" in row["why"]
    assert "cannot optimize this node: CPU counters (instructions)" in report["runs"]["optimize"]
    assert "optimize: caps in watts only (caps.node_w, or [cluster], with policies 'none'): " in text


CAPPED = """
mode = "optimize"
cpu_policy = { name = "none" }
gpu_policy = { name = "none" }
[caps]
node_w = 200.0
rest_w = 60.0
"""


def test_a_node_that_has_rapl_limits_alone_can_be_capped_and_the_verdict_says_so(examined, tmp_path, monkeypatch):
    def without_clocks(inside: InProcess) -> None:
        found = doctor.survey(inside.ports)
        knobs = [one for one in found.knobs if one.name.startswith("rapl/")]
        assert knobs
        layout = msgspec.structs.replace(found.layout, gpus=())
        monkeypatch.setattr(doctor, "survey", lambda ports: replace(found, knobs=knobs, layout=layout))

    text, report = examined("curie", prepare=without_clocks)
    monkeypatch.undo()
    assert report["runs"]["optimize"].startswith("caps in watts only") and "optimize: no" not in text
    settings = tmp_path / "nodectl.toml"
    settings.write_text(CAPPED)
    text, report = examined("curie", settings=settings, prepare=without_clocks)
    assert report["runs"]["optimize"] == "yes", "with its settings"


def test_a_node_that_has_nothing_to_cap_by_cannot_be_optimized(examined, monkeypatch):
    def without_knobs(inside: InProcess) -> None:
        found = doctor.survey(inside.ports)
        monkeypatch.setattr(doctor, "survey", lambda ports: replace(found, knobs=[]))

    text, _ = examined("curie", prepare=without_knobs)
    assert "optimize: no: cannot optimize this node" in text


def test_knobs_that_a_killed_run_left_moved_are_said_in_one_line(monkeypatch, capsys, tmp_path):
    save = Save(save_path(str(tmp_path)), boot_id())
    save.capture({"cpu/policy0/max_khz": "2700000"})
    save.close()
    with InProcess(Twin(load_machine("curie"))) as inside:
        monkeypatch.setattr(doctor, "system_ports", lambda: inside.ports)
        assert main(["doctor", "--state-dir", str(tmp_path)]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"a killed run has left 1 knob moved: `nodectl restore --state-dir {tmp_path}` puts them back"
        with NodeLock(str(tmp_path)):  # an agent at work
            assert main(["doctor", "--state-dir", str(tmp_path)]) == 0
        assert "killed" not in capsys.readouterr().out
