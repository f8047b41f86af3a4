"""What is done about another program that moves the same knobs, and how it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foundation.shell.settings import ConfigError
from nodectl.config import Foreign
from nodectl.knobs import Outcome, open_knob, registry
from nodectl.knobs.known_tools import LOOK_AGAIN_NS, TOOLS, Names, remarks, running
from nodectl.loop.agent import Agent
from nodectl.loop.notices import Notices
from nodectl.write.foreign_writers import CALM_NS
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import MAX_KHZ, StillClock, file_node, limit_path
from tests.nodectl.test_agent import fixed, limit_khz, settings
from tests.nodectl.test_agent import node as twin_node

CLOCK = "cpu/policy0/max_khz"
OTHER = "cpu/policy1/max_khz"
OURS, THEIRS = 1_200_000, 2_000_000


class Node:
    """A node of plain files, a writer under one setting, and a clock that is moved by hand."""

    def __init__(self, tmp_path, foreign: Foreign) -> None:
        self.files = file_node(tmp_path / "node").files
        ports = file_node(tmp_path / "node")
        self.clock = StillClock()
        knobs = [open_knob(ports, name) for name in (CLOCK, OTHER)]
        self.writer = Writer(knobs, str(tmp_path / "save"), "boot", self.clock, foreign=foreign)
        self.writer.start()

    def somebody_sets(self, khz: int) -> None:
        self.files.put(limit_path(0), khz)

    def khz(self) -> int:
        return int(self.files.read(limit_path(0)))

    def tick(self, khz: int = OURS) -> Outcome:
        self.clock.time_ns += 10**9
        return self.writer.apply({CLOCK: khz})[0]


@pytest.fixture
def node(tmp_path):
    def make(**foreign) -> Node:
        return Node(tmp_path, Foreign(**foreign))

    return make


def test_by_default_a_knob_is_left_to_whoever_has_set_it(node):
    made = node()
    made.tick()
    made.somebody_sets(THEIRS)
    assert (made.tick().status, made.khz()) == ("foreign", THEIRS)


def test_a_knob_is_set_again_so_many_times_and_then_left_with_an_alarm(node):
    made = node(action="reassert", times=2)
    made.tick()
    for n in (1, 2):
        made.somebody_sets(THEIRS)
        found = made.tick()
        assert (found.status, found.reason) == ("written", "foreign writer")
        assert found.detail == f"{OURS}: somebody else set it to {THEIRS} kHz; set again ({n} of 2)"
        assert made.khz() == OURS
        assert made.tick().status == "unchanged"
    made.somebody_sets(THEIRS)
    found = made.tick()
    assert (found.status, made.khz()) == ("foreign", THEIRS)
    assert found.detail.startswith(f"ALARM: set again 2 times in vain: somebody else set it to {THEIRS} kHz")


def test_another_value_of_ours_is_set_over_theirs_too(node):
    made = node(action="reassert")
    made.tick()
    made.somebody_sets(THEIRS)
    assert made.tick(1_300_000).status == "written"
    assert made.khz() == 1_300_000


def test_after_ten_quiet_minutes_the_count_begins_again(node):
    made = node(action="reassert", times=1)
    made.tick()
    made.somebody_sets(THEIRS)
    assert made.tick().status == "written"
    made.clock.time_ns += CALM_NS
    made.somebody_sets(THEIRS)
    assert made.tick().detail.endswith("set again (1 of 1)")
    made.somebody_sets(THEIRS)
    assert made.tick().status == "foreign"


def test_a_stricter_limit_is_never_overwritten_by_a_looser_one(node):
    made = node(action="reassert")
    made.tick(THEIRS)
    made.somebody_sets(OURS)
    assert made.tick(THEIRS).status == "written"
    assert made.khz() == OURS == made.writer.ceilings.values[CLOCK]
    assert made.tick(THEIRS).status == "unchanged"
    made.writer.restore_all()
    assert made.khz() == OURS


def test_an_alarm_leaves_the_knob_and_says_so_in_its_line(node):
    made = node(action="alarm")
    made.tick()
    made.somebody_sets(THEIRS)
    found = made.tick()
    assert (found.status, made.khz()) == ("foreign", THEIRS)
    assert found.detail == f"ALARM: somebody else set it to {THEIRS} kHz; it is left to them"


def test_a_kind_of_knob_may_have_an_action_of_its_own():
    chosen = Foreign(action="alarm", kinds={"cpu": "reassert", "scmi": "yield"})
    assert chosen.of(CLOCK) == "reassert"
    assert chosen.of("rapl/package-0/long_term_uw") == "alarm"
    assert chosen.of("scmi+shm:/run/x#package/cap_mw") == "yield"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"foreign": {"action": "fight"}}, "no foreign.action is called 'fight'"),
        ({"foreign": {"times": 0}}, "foreign.times: 0 is outside 1..1000"),
        ({"foreign": {"kinds": {"cpus": "yield"}}}, "there are no knobs of this kind .nearest: cpu"),
        ({"foreign": {"kinds": {"cpu": "fight"}}}, "foreign.kinds"),
        ({"may_raise": ["rap/*"]}, "'rap/.' names no knob, such as rapl/. .nearest: rapl"),
        ({"gpu": {"locked_clock_mhz": -2}}, "gpu.locked_clock_mhz: -2 is no clock"),
        ({"gpu": {"locked_clock_mhz": {"first": 1000}}}, "'first' is no index or UUID of a GPU"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, wrong, message):
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **wrong)


def test_settings_can_name_a_kind_of_knob_as_soon_as_it_is_registered(tmp_path, monkeypatch):
    fan = replace(registry.KINDS[0], pattern=r"fan/\d+/pwm", domain=None)
    named = {"foreign": {"kinds": {"fan": "yield"}}, "may_raise": ["fan/*"]}
    with pytest.raises(ConfigError, match="there are no knobs of this kind"):
        settings(tmp_path, **named)
    monkeypatch.setattr(registry, "KINDS", (*registry.KINDS, fan))
    assert settings(tmp_path, **named).foreign.of("fan/0/pwm") == "yield"


def test_a_knob_that_was_set_again_is_logged_once_while_it_lasts():
    clock, said = StillClock(), []
    notices = Notices(clock, said.append)
    again = Outcome(CLOCK, "written", "1200000: somebody else set it; set again (1 of 3)", "foreign writer")
    notices.report([again, Outcome(OTHER, "written", "1200000")])
    notices.report([again])
    assert said == [f"{CLOCK}: written (foreign writer): {again.detail}"]


# --- who it was


def service(files, name: str) -> None:
    files.put(f"/sys/fs/cgroup/system.slice/{name}.service/cgroup.procs", "")


def names_of(files) -> list[str]:
    return [tool.name for tool in running(files)]


def test_a_tool_is_known_by_its_service_or_its_process(tmp_path):
    files = file_node(tmp_path).files
    assert names_of(files) == []
    service(files, "tuned")
    files.put("/proc/1/comm", "systemd")
    files.put("/proc/812/comm", "power-profiles-")
    files.put("/proc/813/stat", "no name")
    assert names_of(files) == ["tuned", "power-profiles-daemon"]
    files.put("/sys/fs/cgroup/systemd/system.slice/thermald.service/cgroup.procs", "")
    assert names_of(files) == ["tuned", "power-profiles-daemon", "thermald"]


def test_the_running_tool_that_writes_such_knobs_is_named_in_the_outcome(tmp_path):
    files, clock = file_node(tmp_path).files, StillClock()
    service(files, "thermald")
    names = Names(files, clock)
    rapl = Outcome("rapl/package-0/long_term_uw", "foreign", "somebody else set it to 5 uW", "foreign writer")
    uncore = Outcome("uncore/uncore00/max_khz", "foreign", "somebody else set it", "foreign writer")
    hot = Outcome(CLOCK, "no-effect", "it is hot", "thermal")
    first = names.named([rapl, uncore, hot])
    assert first[0].detail == "somebody else set it to 5 uW (running, and known to write it: thermald)"
    assert first[1:] == [uncore, hot]
    assert names.named([rapl])[0] is first[0], "the journal records an outcome that is repeated only once"
    service(files, "tuned")
    again = Outcome(CLOCK, "foreign", "set", "foreign writer")
    assert "tuned" not in names.named([again])[0].detail, "not looked for at each tick"
    clock.time_ns += LOOK_AGAIN_NS
    again = Outcome(CLOCK, "foreign", "set", "foreign writer")
    assert names.named([again])[0].detail == "set (running, and known to write it: tuned and thermald)"


def test_doctor_names_tools_that_write_a_knob_of_this_node_and_no_others(tmp_path):
    files = file_node(tmp_path).files
    service(files, "thermald")
    service(files, "auto-cpufreq")
    assert remarks(files, ["rapl/package-0/long_term_uw", "gpu/0/sm_clock_mhz"]) == [
        "thermald is running and writes rapl/* too: stop it before mode optimize (`systemctl disable --now thermald`)"
    ]


def test_the_unit_does_not_run_next_to_a_tool_that_writes_the_same_knobs():
    unit = (Path(__file__).parents[2] / "systemd" / "nodectl-agent.service").read_text()
    line = next(line for line in unit.splitlines() if line.startswith("Conflicts="))
    assert line.removeprefix("Conflicts=").split() == [f"{tool.name}.service" for tool in TOOLS]


def test_a_clock_that_the_processor_chooses_itself_is_named_as_such(tmp_path):
    ports = file_node(tmp_path)
    policy = limit_path(0).removesuffix("scaling_max_freq")
    ports.files.put(f"{policy}scaling_driver", "intel_pstate")
    knob = open_knob(ports, CLOCK)
    assert knob.explain(OURS, None)[0] == "firmware", "without HWP"
    ports.files.put(f"{policy}energy_performance_preference", "balance_power")
    reason, text = knob.explain(OURS, None)
    assert (reason, text) == (
        "HWP",
        "the processor chooses clocks by itself (intel_pstate, energy preference balance_power)",
    )
    assert knob.explain(OURS, MAX_KHZ) == ("", "")


def test_an_agent_sets_a_knob_again_and_names_the_tool_that_may_have_moved_it(tmp_path, monkeypatch):
    monkeypatch.setattr("nodectl.knobs.known_tools.running", lambda files: [TOOLS[0]])
    rule = {"action": "reassert", "times": 1, "kinds": {"rapl": "yield"}}
    with twin_node("curie", "hpl") as inside:
        said: list[str] = []
        config = settings(tmp_path, cpu_policy=fixed(1_800_000), foreign=rule)
        with Agent.open(inside.ports, config, said.append) as agent:
            agent.tick()
            for khz in (2_300_000, 2_400_000):
                inside.ports.files.write(limit_path(0), str(khz))
                for _ in range(10):
                    agent.tick()
                    if limit_khz(inside) != khz:
                        break
            assert limit_khz(inside) == 2_400_000
    again = next(line for line in said if line.startswith(f"{CLOCK}: written"))
    left = next(line for line in said if line.startswith(f"{CLOCK}: foreign"))
    assert again.startswith(
        f"{CLOCK}: written (foreign writer): 1800000: somebody else set it to 2300000 kHz; set again"
    )
    assert left.startswith(f"{CLOCK}: foreign (foreign writer): ALARM: set again 1 times in vain")
    assert again.endswith("(running, and known to write it: tuned)") and left.endswith("known to write it: tuned)")
