"""The energy preference: words that are captured, written and put back as found, and the governor that refuses them."""

import pytest

from foundation.boot import boot_id
from foundation.shell.errors import NodectlError, UsageError
from nodectl.commands.run import policy_of_domain
from nodectl.config import PolicyChoice
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.knobs import find_knobs, open_knob
from nodectl.loop.agent import Agent
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import read_save
from nodectl.write.writer import Writer
from pmu.node import discover
from tests.nodectl.file_tree import file_node
from tests.nodectl.test_agent import node, run, settings

POLICY = "/sys/devices/system/cpu/cpufreq/policy{}"
FIRST = "epp/policy0/preference"
PREFERENCES = "default performance balance_performance balance_power power"
BALANCE_POWER, POWER = 4, 5
"""Places in that list, counted from 1."""


def epp(tmp_path, value):
    none = {"name": "none"}
    chosen = {"epp": {"name": "fixed", "params": {"value": value}}}
    return settings(tmp_path, cpu_policy=none, gpu_policy=none, policies=chosen)


def preference(inside, policy: int = 0) -> str:
    return inside.ports.files.read(POLICY.format(policy) + "/energy_performance_preference").strip()


def prefer(inside, word: str, policy: int = 0) -> None:
    inside.ports.files.write(POLICY.format(policy) + "/energy_performance_preference", word)


def govern(inside, governor: str) -> None:
    inside.ports.files.write(POLICY.format(0) + "/scaling_governor", governor)


def rows_of(inside):
    knobs, rows = find_knobs(inside.ports, discover(inside.ports)[0])
    return (
        [knob.name for knob in knobs if knob.name.startswith("epp/")],
        [row for row in rows if row.name.startswith("epp/")],
    )


def test_every_policy_whose_driver_takes_a_hint_has_the_knob():
    with node("skylake-6146", "hpl") as inside:
        names, rows = rows_of(inside)
        assert names == [row.name for row in rows] and len(names) == 24


def test_a_driver_that_takes_no_hint_is_one_row_with_the_reason():
    with node("curie", "hpl") as inside:
        names, (row,) = rows_of(inside)
        assert names == [] and row.name == "epp/*/preference" and not row.present
        assert "no cpufreq policy has energy_performance_preference" in row.why


def test_under_a_drivers_governor_performance_the_knob_is_listed_with_that_reason_and_left_alone():
    with node("genoa-h100", "hpl") as inside:  # amd-pstate-epp
        names, rows = rows_of(inside)
        assert names == [] and rows and not any(row.writable for row in rows)
        assert "governor performance of amd-pstate-epp allows no other preference" in rows[0].why


def test_a_fixed_preference_is_set_by_its_word_and_each_policy_gets_its_own_back(tmp_path):
    with node("client", "hpl") as inside:
        prefer(inside, "power", policy=1)
        before = [preference(inside, policy) for policy in (0, 1, 2)]
        assert before == ["balance_performance", "power", "balance_performance"]
        agent = Agent.open(inside.ports, epp(tmp_path, "balance_power"))
        agent.tick()
        assert [preference(inside, policy) for policy in (0, 1, 2)] == ["balance_power"] * 3
        saved = read_save(save_path(str(tmp_path))).knobs
        assert (saved[FIRST].value, saved["epp/policy1/preference"].value) == ("balance_performance", "power")
        agent.stop()
        assert [preference(inside, policy) for policy in (0, 1, 2)] == before


def test_a_word_that_the_driver_does_not_list_is_one_line_with_those_that_it_does(tmp_path):
    with node("client", "hpl") as inside, pytest.raises(UsageError, match=r"'eco'; it takes default, performance, "):
        Agent.open(inside.ports, epp(tmp_path, "eco"))


def test_without_a_value_nothing_is_wished_for(tmp_path):
    with node("client", "hpl") as inside:
        prefer(inside, "power")
        agent = Agent.open(inside.ports, epp(tmp_path, 0))
        agent.tick()
        assert preference(inside) == "power"
        agent.stop()


def test_a_preference_that_somebody_else_has_set_since_is_left_to_them(tmp_path):
    with node("client", "hpl") as inside:
        said: list[str] = []
        agent = Agent.open(inside.ports, epp(tmp_path, "power"), said.append)
        agent.tick()
        for policy in range(4):
            prefer(inside, "performance", policy)
        agent.run(inside.twin.time_ns + 2 * 10**9)
        agent.stop()
        assert preference(inside) == "performance"
        assert any("somebody else set it to performance; it is left to them" in line for line in said)


def test_after_a_kill_a_restore_compares_words_and_puts_back_those_that_are_still_ours(tmp_path):
    with node("client", "hpl") as inside:
        path, ports = save_path(str(tmp_path)), inside.ports
        names = [FIRST, "epp/policy1/preference"]
        writer = Writer([open_knob(ports, name) for name in names], path, boot_id(), ports.clock)
        writer.start()
        assert [one.status for one in writer.apply(dict.fromkeys(names, POWER))] == ["written", "written"]
        writer.close()  # killed: nothing is restored
        prefer(inside, "balance_power", policy=1)
        restored = restore_saved(path, boot_id(), lambda name: open_knob(ports, name))
        assert [(one.knob, one.status) for one in restored.outcomes] == [(names[1], "left"), (names[0], "restored")]
        assert restored.outcomes[1].detail == "power to balance_performance"
        assert (preference(inside, 0), preference(inside, 1)) == ("balance_performance", "balance_power")


def test_a_governor_that_comes_later_refuses_write_and_restore_and_the_captured_word_waits(tmp_path):
    with node("client", "hpl") as inside:
        path, ports = save_path(str(tmp_path)), inside.ports
        with Writer([open_knob(ports, FIRST)], path, boot_id(), ports.clock) as writer:
            assert writer.apply({FIRST: POWER})[0].status == "written"
            govern(inside, "performance")
            (outcome,) = writer.apply({FIRST: BALANCE_POWER})
            assert (outcome.status, outcome.reason) == ("refused", "governor")
            assert "governor performance of intel_pstate" in outcome.detail
        assert read_save(path).knobs[FIRST].value == "balance_performance"
        govern(inside, "powersave")
        assert restore_saved(path, boot_id(), lambda name: open_knob(ports, name)).is_complete
        assert preference(inside) == "balance_performance"


def test_under_the_governor_nothing_is_captured_for_the_file_hides_what_was_set(tmp_path):
    with node("client", "hpl") as inside:
        path, ports = save_path(str(tmp_path)), inside.ports
        with Writer([open_knob(ports, FIRST)], path, boot_id(), ports.clock) as writer:
            govern(inside, "performance")
            (outcome,) = writer.apply({FIRST: POWER})
            assert (outcome.status, outcome.reason) == ("refused", "governor") and not writer.captured


def test_a_number_that_somebody_has_set_is_put_back_as_that_number(tmp_path):
    ports = file_node(tmp_path, policies=1)
    folder = POLICY.format(0)
    ports.files.put(f"{folder}/energy_performance_available_preferences", PREFERENCES)
    ports.files.put(f"{folder}/energy_performance_preference", 128)
    knob = open_knob(ports, FIRST)
    assert knob.number("128") == knob.read_back() and knob.shown(knob.read_back()) == "128"
    with Writer([knob], save_path(str(tmp_path)), boot_id(), ports.clock) as writer:
        assert writer.apply({FIRST: BALANCE_POWER})[0].status == "written"
        assert ports.files.read(f"{folder}/energy_performance_preference").strip() == "balance_power"
    assert ports.files.read(f"{folder}/energy_performance_preference").strip() == "128"


def test_default_matches_whatever_word_the_processor_had_at_boot():
    with node("client", "hpl") as inside:
        prefer(inside, "power")
        knob = open_knob(inside.ports, FIRST)
        knob.set(1)
        assert preference(inside) == "balance_performance" and knob.matches(1, knob.read_back())
        assert not knob.matches(POWER, knob.read_back())


def test_a_journal_with_preferences_replays_to_the_same_bytes(tmp_path):
    with node("client", "hpl") as inside:
        run(inside, epp(tmp_path, "power"), 2.0)
    report = replay(open_journal(tmp_path / "journal"))
    assert report.is_equal and report.decided > 10 and report.policies == ("fixed-epp",)


def test_a_node_without_preferences_names_the_reason_when_they_are_requested(tmp_path):
    with (
        node("curie", "hpl") as inside,
        pytest.raises(NodectlError, match=r"no energy preferences to move: no cpufreq"),
    ):
        Agent.open(inside.ports, epp(tmp_path, "power"))


def test_the_command_line_chooses_a_preference_by_its_domain():

    path, (option, choice) = policy_of_domain("epp=fixed:value=balance_power")
    assert (path, option) == (("policies", "epp"), "--policy")
    assert PolicyChoice(**choice) == PolicyChoice("fixed", {"value": "balance_power"})
