"""What a node declares to its cluster agent is checked against what it has, and each problem is a line with its fix."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from firmware_bridge.scmi.protocols.telemetry import LeaseLeft, LeaseUntil
from lab.node_demo.pulp_node import RUNTIME_CHANNEL, PulpNode
from nodectl.cli import main
from nodectl.commands import doctor
from nodectl.config import Config, Scmi, build_config
from nodectl.loop.survey import survey
from nodectl.member.declared import CapController, cap_controller, problems, proof, read_controller
from pmu.layout import EnergyZone, Gpu, Layout
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.pulp.plant import CLASSES

RAPL = "/sys/class/powercap"
NO_CONTROLLER = CapController("no controller enforces the cap")
ARMED = {"/sys/class/watchdog/watchdog0/state": "active", "/sys/class/watchdog/watchdog0/timeout": "15"}


class Texts:
    """Files, and nothing else."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def read(self, path: str) -> str:
        if path not in self.texts:
            raise FileNotFoundError(path)
        return self.texts[path]

    def listdir(self, path: str) -> list[str]:
        found = {name[len(path) + 1 :].partition("/")[0] for name in self.texts if name.startswith(f"{path}/")}
        if not found:
            raise FileNotFoundError(path)
        return sorted(found)


def limits(least_w: int, most_w: int) -> dict[str, str]:
    """Of two packages."""
    return {
        f"{RAPL}/intel-rapl:{n}/constraint_0_{which}_power_uw": str(watts * 1_000_000)
        for n in (0, 1)
        for which, watts in (("min", least_w), ("max", most_w))
    }


def config(rest_w: float = 60.0, **declared: Any) -> Config:
    cluster = {"tdp_w": 900.0, "mop_w": 300.0, "safe_w": 320.0, "boot_w": 400.0} | declared
    given = {"mode": "optimize", "caps": {"rest_w": rest_w}, "cluster": {"url": "tcp://head:7410"} | cluster}
    return build_config(given, lambda key: ".".join(key))


@pytest.fixture(scope="module")
def layout() -> Layout:
    """Two packages and a GPU of 100 to 300 W."""
    with InProcess(Twin(load_machine("curie"))) as inside:
        found = survey(inside.ports).layout
    zones = tuple(EnergyZone(f"package-{n}", f"intel-rapl:{n}", "package", n, 1 << 32) for n in (0, 1))
    gpu = Gpu(0, "GPU-1", "a GPU", (300, 1000), 1000, 300.0, 100.0, 300.0, False)
    return msgspec.structs.replace(found, zones=zones, gpus=(gpu,))


def found(layout: Layout, settings: Config, files: dict[str, str], controller: CapController = NO_CONTROLLER) -> Any:
    return problems(settings, layout, Texts(files), controller)  # type: ignore[arg-type]


def test_a_sound_declaration_has_no_findings_and_neither_has_a_node_of_no_cluster(layout):
    assert found(layout, config(), ARMED | limits(70, 250)) == []
    assert found(layout, Config(), {}) == []


def test_a_node_that_counts_no_watts_outside_its_packages_is_found(layout):
    (line,) = found(layout, config(rest_w=0.0), ARMED)
    assert line.startswith("caps.rest_w is 0: the node is above its cap by what board, fans and memory draw")


def test_a_mop_or_a_safe_cap_below_what_the_knobs_can_be_set_to_is_found(layout):
    low = config(mop_w=290.0, safe_w=299.5)
    assert found(layout, low, ARMED | limits(70, 250)) == [
        f"{key} {watts} W is less than the node can be capped to, 300 W (packages 140, GPUs 100, caps.rest_w 60):"
        f" set {key} to 300 or more"
        for key, watts in (("mop_w", "290"), ("safe_w", "299.5"))
    ]
    assert found(layout, low, ARMED) == [], "packages that do not say how low they go"
    (line, _) = found(layout, low, ARMED, CapController("none", least_w=200.0))
    assert "360 W (packages 200, " in line, "where a controller enforces the cap its range counts"


def test_a_tdp_below_what_the_knobs_allow_is_found(layout):
    (line,) = found(layout, config(tdp_w=859.0), ARMED | limits(70, 250))
    assert line.startswith("tdp_w 859 W is less than the node's knobs allow, 860 W (packages 500, GPUs 300,")
    assert line.endswith("set tdp_w to 860 or more")
    (line,) = found(layout, config(), ARMED, CapController("none", most_w=600.0))
    assert "set tdp_w to 960 or more" in line


def test_a_boot_power_below_what_is_always_drawn_is_found(layout):
    (line,) = found(layout, config(boot_w=50.0), ARMED)
    assert line.startswith("boot_w 50 W is less than caps.rest_w (60 W)")


@pytest.mark.parametrize(
    ("files", "finding"),
    [
        ({}, "no hardware watchdog in /sys/class/watchdog: load its driver"),
        (ARMED | {"/sys/class/watchdog/watchdog0/state": "inactive"}, "nobody has armed a watchdog (watchdog0"),
        (ARMED | {"/sys/class/watchdog/watchdog0/timeout": "60"}, "watchdog_s 20 s is less than the watchdog"),
    ],
)  # fmt: skip
def test_class_os_needs_a_watchdog_that_is_armed_and_fast_enough(layout, files, finding):
    (line,) = found(layout, config(), files)
    assert finding in line
    assert found(layout, config(lease_class="sticky"), files) == []


def test_a_watchdog_whose_kernel_does_not_tell_its_state_is_believed(layout):
    assert found(layout, config(), {"/sys/class/watchdog/watchdog0/identity": "iTCO"}) == []


def test_class_hw_needs_a_controller_that_ends_leases_at_a_cap_within_safe_w(layout):
    hw, alone = config(lease_class="hw"), msgspec.structs.replace(layout, gpus=())
    assert found(alone, hw, {}) == ["lease_class hw, but no controller enforces the cap: declare os or sticky"]
    assert found(alone, hw, {}, CapController(left_s=1.0, lapsed_w=260.0)) == []
    assert found(alone, hw, {}, CapController()) == [], "it can, and the first grant makes it"
    (line,) = found(alone, hw, {}, CapController(left_s=1.0, lapsed_w=270.0))
    assert "falls to 270 W without a lease, and with caps.rest_w (60 W) that is not within safe_w (320 W)" in line
    (line,) = found(layout, hw, {}, CapController())
    assert line == "lease_class hw, but no controller ends the limits of the GPUs: declare os or sticky"


def test_class_os_is_not_true_of_a_cap_that_a_controller_keeps_through_a_reset(layout):
    held = msgspec.structs.replace(config(), scmi=Scmi("scmi+inproc:", {"node/cap_mw": "package"}))
    (line,) = found(layout, held, ARMED, CapController("the controller offers no lease"))
    assert line.endswith("when the watchdog resets this machine: declare sticky")
    (line,) = found(layout, held, ARMED, CapController())
    assert line.endswith("declare hw, since it ends leases by itself")


def test_our_firmware_says_whether_it_ends_leases_which_is_set_and_how_low_its_cap_goes():
    node, hw = PulpNode(CLASSES[1]), config(lease_class="hw")
    client = node.connect(RUNTIME_CHANNEL)
    before = read_controller(client, "package")
    assert 0 < before.least_w < before.most_w < float("inf")
    assert proof(hw, before).endswith("by itself; none is set now, the first grant sets one")
    client.request(LeaseUntil(client.request(LeaseLeft()).now_ms + 1500, 90_000))
    during = read_controller(client, "package")
    assert (during.why, during.lapsed_w) == ("", 90.0)
    assert 1.49 <= during.left_s <= 1.5
    assert proof(hw, during).endswith("by itself; 1.5 s are left of its lease, then 90 W at most")
    node.advance(1.6)
    assert proof(hw, read_controller(client, "package")).endswith("its lease is over, then 90 W at most")
    assert proof(config(lease_class="os"), during) == ""
    other = read_controller(client, "voltage domain 0")
    assert other.why == "the controller's lease is on power domain 0, and the cap on 1 (voltage domain 0)"
    assert proof(hw, other) == ""


def test_a_controller_that_is_not_there_or_enforces_no_cap_ends_no_lease(tmp_path):
    assert "no controller enforces the cap" in cap_controller(Scmi()).why
    gone = cap_controller(Scmi(f"scmi+shm:{tmp_path}/gone.sock", {"node/cap_mw": "package"}))
    assert "cannot be reached" in gone.why


def test_doctor_prints_each_finding_as_a_line_and_in_its_json(monkeypatch, capsys, tmp_path):
    path = tmp_path / "nodectl.toml"
    path.write_text(
        'mode = "optimize"\n[cluster]\nurl = "tcp://head:7410"\ntdp_w = 300.0\nmop_w = 150.0\nsafe_w = 160.0\n'
        'boot_w = 200.0\nlease_class = "hw"\n'
    )
    with InProcess(Twin(load_machine("curie"))) as inside:
        monkeypatch.setattr(doctor, "system_ports", lambda: inside.ports)
        assert main(["doctor", "--config", str(path)]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[cluster]: ")]
        assert main(["doctor", "--config", str(path), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
    assert lines == [f"[cluster]: {doubt}" for doubt in report["cluster"]]
    assert any("declare os or sticky" in line for line in lines)
