"""A clock lock that the site has set on its GPUs, which NVML cannot read back, on the emulated NVML."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nodectl.config import GpuSettings
from nodectl.knobs import KnobError, open_knob
from nodectl.knobs.gpu_limits import ClockLock
from nodectl.loop.agent import Agent
from nodectl.write.device_names import saved_name
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import node_id, read_save
from nodectl.write.site_lock import NEAR, PINNED_S, SiteLocks
from pmu.node import discover
from pmu.readings import RAW_MISSING, Sample
from tests.nodectl.small_node import CLOCKS_MHZ, layout, sample
from tests.nodectl.test_agent import fixed_gpu, lock_mhz, node, settings
from twin.in_process_node import InProcess

S = 1_000_000_000
NO_CPU = {"cpu_policy": {"name": "none"}}
UNDECLARED = {"gpu": {"locked_clock_mhz": -1}, **NO_CPU}
SITE_MHZ = 1095


def lock_all(inside: InProcess, clock_mhz: int = SITE_MHZ) -> None:
    """As the site's `nvidia-smi -lgc` does."""
    for index in range(4):
        open_knob(inside.ports, f"gpu/{index}/sm_clock_mhz").set(clock_mhz)


def locks(inside: InProcess) -> list[int]:
    return [lock_mhz(inside, index) for index in range(4)]


def run_for(inside: InProcess, agent: Agent, seconds: float) -> None:
    agent.run(until_ns=inside.ports.clock.now_ns() + round(seconds * S))


# --- declared


def test_a_declared_lock_is_not_exceeded_and_comes_back_at_the_end(tmp_path):
    with node("xh2415", "easywave") as inside:
        lock_all(inside)
        config = settings(tmp_path, gpu={"locked_clock_mhz": SITE_MHZ}, gpu_policy=fixed_gpu(1305), **NO_CPU)
        said: list[str] = []
        with Agent.open(inside.ports, config, said.append) as agent:
            run_for(inside, agent, 1.0)
            assert locks(inside) == [SITE_MHZ] * 4, "1305 MHz were requested"
        assert locks(inside) == [SITE_MHZ] * 4
        assert [line for line in said if "gpu/0/sm_clock_mhz and 3 more: stays at 1095 MHz" in line]
        config = settings(tmp_path, gpu={"locked_clock_mhz": SITE_MHZ}, gpu_policy=fixed_gpu(1005), **NO_CPU)
        with Agent.open(inside.ports, config) as agent:
            run_for(inside, agent, 1.0)
            assert locks(inside) == [1005] * 4
        assert locks(inside) == [SITE_MHZ] * 4


def test_each_gpu_may_be_declared_by_index_or_uuid(tmp_path):
    with node("xh2415", "easywave") as inside:
        lock_all(inside)
        gpus = discover(inside.ports)[0].gpus
        declared = {"0": SITE_MHZ, gpus[2].uuid: SITE_MHZ, "3": 0}
        config = settings(tmp_path, gpu={"locked_clock_mhz": declared}, gpu_policy=fixed_gpu(1005), **NO_CPU)
        with Agent.open(inside.ports, config) as agent:
            run_for(inside, agent, 1.0)
            assert locks(inside) == [1005, SITE_MHZ, 1005, 1005]
        assert locks(inside) == [SITE_MHZ, SITE_MHZ, SITE_MHZ, 0], "GPU 1 is not declared and was left alone"


def test_after_a_kill_the_sites_lock_comes_back_from_disk(tmp_path):
    with node("xh2415", "easywave") as inside:
        lock_all(inside)
        config = settings(tmp_path, gpu={"locked_clock_mhz": SITE_MHZ}, gpu_policy=fixed_gpu(1005), **NO_CPU)
        agent = Agent.open(inside.ports, config)
        agent.tick()
        agent._actuation._lock.release()
        agent._actuation._writer.close()
        path, boot = save_path(str(tmp_path)), node_id(inside.ports.lock_path)
        lock = open_knob(inside.ports, "gpu/0/sm_clock_mhz")
        assert read_save(path).knobs[saved_name(lock)].value == "locked 1095"
        assert restore_saved(path, boot, lambda name: open_knob(inside.ports, name)).is_complete
        assert locks(inside) == [SITE_MHZ] * 4


# --- observed


def test_a_lock_that_shows_under_load_is_kept_and_comes_back(tmp_path):
    with node("xh2415", "easywave") as inside:
        lock_all(inside)
        said: list[str] = []
        config = settings(tmp_path, gpu_policy=fixed_gpu(1005), **UNDECLARED)
        with Agent.open(inside.ports, config, said.append) as agent:
            run_for(inside, agent, 1.5)
            assert locks(inside) == [SITE_MHZ] * 4, "not before it has shown for a while"
            run_for(inside, agent, 2.0)
            assert locks(inside) == [1005] * 4
        assert locks(inside) == [SITE_MHZ] * 4
    assert "gpu/0/sm_clock_mhz and 3 more: left alone until its clock shows under load" in said[0]
    assert "gpu/0/sm_clock_mhz: stays at 1095 MHz under load and nothing throttles it: taken as the site's" in said[1]


def test_a_gpu_that_shows_nothing_is_left_alone_and_the_log_says_how_to_change_that(tmp_path):
    with node("xh2415", "hpl") as inside:  # its GPUs are idle
        lock_all(inside)
        said: list[str] = []
        with Agent.open(
            inside.ports, settings(tmp_path, gpu_policy=fixed_gpu(1005), **UNDECLARED), said.append
        ) as agent:
            run_for(inside, agent, 5.0)
            assert locks(inside) == [SITE_MHZ] * 4
        assert locks(inside) == [SITE_MHZ] * 4
    (line,) = said
    assert "gpu/0/sm_clock_mhz and 3 more: left alone" in line and "[gpu] locked_clock_mhz" in line


def test_a_gpu_at_its_highest_clock_is_not_locked_and_is_optimized_at_once(tmp_path):
    with node("xh2415", "easywave") as inside:
        lock_all(inside, 1410)
        config = settings(tmp_path, gpu_policy=fixed_gpu(1005), **UNDECLARED)
        with Agent.open(inside.ports, config) as agent:
            run_for(inside, agent, 1.0)
            assert locks(inside) == [1005] * 4
        assert locks(inside) == [0] * 4


def test_what_a_killed_run_could_not_put_back_is_known_from_its_save(tmp_path):
    with node("xh2415", "easywave") as inside:
        found = {f"gpu/{n}/sm_clock_mhz": open_knob(inside.ports, f"gpu/{n}/sm_clock_mhz") for n in range(4)}
        gpus = discover(inside.ports)[0].gpus
        known = SiteLocks(list(found.values()), gpus, GpuSettings())
        known.inherit(
            {"gpu/0/sm_clock_mhz": "locked 1095", "gpu/1/sm_clock_mhz": "unlocked", "cpu/policy0/max_khz": "1"}
        )
        assert list(known.unknown) == ["gpu/2/sm_clock_mhz", "gpu/3/sm_clock_mhz"]
        assert [found[f"gpu/{n}/sm_clock_mhz"].read() for n in (0, 1)] == ["locked 1095", "unlocked"]


# --- what a sample shows


class Card(ClockLock):
    """A lock of which only the baseline is looked at."""

    def __init__(self, index: int) -> None:
        self.name, self.baseline_mhz = f"gpu/{index}/sm_clock_mhz", 0


HIGHEST = CLOCKS_MHZ[-1]


def shows(clock_mhz: float, busy: float = 1.0, reasons: int = 0, elapsed_s: float = 0.5) -> Sample:
    made = sample(layout(1), elapsed_s=elapsed_s)
    gpu = {"sm_clock_mhz": clock_mhz, "gpu_utilization": busy, "throttle_reasons": reasons}
    return replace(made, gpu=replace(made.gpu, **{name: np.array([value]) for name, value in gpu.items()}))


def observed(*samples: Sample) -> int | None:
    """The baseline after these; None while it is unknown."""
    card = Card(0)
    watch = SiteLocks([card], layout(1).gpus, GpuSettings())
    for one in samples:
        watch.look(one)
    return None if watch.unknown else card.baseline_mhz


def test_a_card_is_locked_where_it_stays_under_load():
    assert observed(*[shows(1095)] * 5) == 1095, "4 intervals of 0.5 s after the first one"
    assert PINNED_S == 2.0 and observed(*[shows(1095)] * 4) is None


def test_a_clock_that_moves_is_no_lock():
    assert observed(*[shows(clock) for clock in (1095, 1110) * 10]) is None
    assert observed(*[shows(1095)] * 4, shows(1110), *[shows(1095)] * 4) is None


@pytest.mark.parametrize("reasons", [0x2, 0x4, 0x8, 0x20, 0x40, 0x80, RAW_MISSING])
def test_a_clock_that_the_driver_has_a_reason_for_shows_no_lock(reasons):
    assert observed(*[shows(1095, reasons=reasons)] * 20) is None


def test_an_idle_card_shows_no_lock_and_neither_does_one_without_readings():
    assert observed(*[shows(1095, busy=0.3)] * 20) is None
    assert observed(*[shows(float("nan"))] * 20) is None
    assert observed(*[shows(1095, busy=float("nan"))] * 20) is None


def test_a_card_a_few_steps_below_its_highest_clock_shows_neither():
    assert observed(*[shows(round(NEAR * HIGHEST) + 1)] * 20) is None
    assert observed(*[shows(round(NEAR * HIGHEST) - 1)] * 20) == round(NEAR * HIGHEST) - 1


def test_a_card_at_its_highest_clock_is_not_locked_however_busy_it_is():
    assert observed(shows(HIGHEST, busy=0.0, reasons=1)) == 0


# --- the knob


def test_a_saved_state_is_a_lock_or_none_and_nothing_else(tmp_path):
    with node("xh2415", "easywave") as inside:
        lock = open_knob(inside.ports, "gpu/0/sm_clock_mhz")
        lock.restore("locked 1095")
        assert lock_mhz(inside) == SITE_MHZ
        lock.restore("unlocked")
        assert lock_mhz(inside) == 0
        for text in ("locked", "locked x", "1095", "locked -5"):
            with pytest.raises(KnobError, match="not one this knob can have captured"):
                lock.restore(text)
