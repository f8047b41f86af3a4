"""How a GPU is divided is a knob: chosen by name, captured, put back exactly, never under a process that computes."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="pynvml is missing: install nvidia-ml-py")

from foundation.shell.errors import UsageError
from nodectl.build_restorer import build
from nodectl.knobs import KnobError, find_knobs, open_knob
from nodectl.knobs.find import KnobFinder
from nodectl.knobs.gpu_layout import OFF, OTHER
from nodectl.loop.agent import Agent
from nodectl.write.restore import restore_saved
from nodectl.write.saves import read_save
from nodectl.write.writer import Writer
from pmu.node import discover
from tests.nodectl.test_agent import node, settings
from tests.twin.nvml.conftest import (  # noqa: F401 # fixtures
    cards,
    library_file,
    read_state,
    run_in_node,
    write_state,
)

THREES, FOUR_THREE = "on 9@0/2 9@4/2", "on 5@0/3 9@4/2"
MIXED = "on 9@0/1,0 14@4 19@6/0"
"""A layout that no policy can choose: compute instances of two kinds in one GPU instance, and none in another."""


def knob_of(inside: Any) -> Any:
    return open_knob(inside.ports, "gpu/0/mig_layout")


def layout(tmp_path: Path, value: str) -> Any:
    none = {"name": "none"}
    chosen = {"mig": {"name": "fixed", "params": {"value": value}}}
    return settings(tmp_path, cpu_policy=none, gpu_policy=none, policies=chosen)


def uuids(inside: Any) -> list[str]:
    nvml = inside.ports.nvml
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            found.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)))
        except nvml.NVMLError:
            break
    return found


def refused(run: Callable[[], None]) -> str:
    with pytest.raises(KnobError) as error:
        run()
    assert error.value.status == "refused" and "\n" not in str(error.value)
    return str(error.value)


def test_a_policy_divides_a_card_by_name_and_the_end_of_the_run_puts_it_back(tmp_path: Path) -> None:
    with node("a100", "hpl") as inside:
        with Agent.open(inside.ports, layout(tmp_path, "4g+3g")) as agent:
            agent.tick()
            assert knob_of(inside).read() == FOUR_THREE and len(uuids(inside)) == 2
        assert knob_of(inside).read() == OFF


def test_a_word_that_is_no_layout_of_the_card_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with node("a100", "hpl") as inside, pytest.raises(UsageError, match=r"cannot be set to '5g'; it takes off, 7g, 4g"):
        Agent.open(inside.ports, layout(tmp_path, "5g"))


def test_every_layout_that_can_be_chosen_is_made_and_read_back() -> None:
    with node("a100", "hpl") as inside:
        knob = knob_of(inside)
        assert len(knob.words) == 13
        for value in range(1, len(knob.words) + 1):
            knob.set(value)
            assert knob.read_back() == value


def test_a_layout_that_no_policy_can_choose_is_put_back_with_its_uuids(tmp_path: Path) -> None:
    with node("a100", "hpl") as inside:
        knob_of(inside).restore(MIXED)
        before = uuids(inside)
        assert knob_of(inside).read() == MIXED and knob_of(inside).read_back() > OTHER and len(before) == 3
        with Writer([knob_of(inside)], str(tmp_path / "save"), "boot-1", inside.ports.clock) as writer:
            (done,) = writer.apply({"gpu/0/mig_layout": 1 + knob_of(inside).words.index("3g+3g")})
            assert done.status == "written" and len(uuids(inside)) == 2
        assert knob_of(inside).read() == MIXED and uuids(inside) == before


def test_a_card_on_which_a_process_computes_stays_as_it_is_and_is_divided_when_that_has_ended(tmp_path: Path) -> None:
    with node("a100", "qe-pw") as inside:
        inside.twin.advance(1)
        knob = knob_of(inside)
        with Writer([knob], str(tmp_path / "save"), "boot-1", inside.ports.clock) as writer:
            wanted = {knob.name: 1 + knob.words.index("3g+3g")}
            (done,) = writer.apply(wanted)
            assert done.status == "refused" and "a process computes on it (PID " in done.detail
            assert inside.ports.nvml.nvmlDeviceGetMigMode(inside.ports.nvml.nvmlDeviceGetHandleByIndex(0)) == [0, 0]
            inside.twin.stop_workload()
            inside.twin.advance(120)
            (done,) = writer.apply(wanted)
            assert done.status == "written" and knob.read() == THREES
        assert knob.read() == OFF


def test_a_layout_that_does_not_fit_is_one_line_and_changes_nothing() -> None:
    with node("a100", "hpl") as inside:
        knob = knob_of(inside)
        knob.restore(THREES)
        for text, why in (
            ("on 9@0/2 5@0/3", "profile 5 does not fit at slice 0"),
            ("on 9@1/2", "profile 9 does not fit at slice 1"),
            ("on 77@0", "cannot list the places of profile 77"),
            ("on nothing", "is not one this knob can have captured"),
            ("on 19@0/3", "cannot make a compute instance of profile 3"),
        ):
            assert why in refused(lambda text=text: knob.restore(text))
            assert knob.read() == THREES
        assert "none is number 99" in refused(lambda: knob.set(99))


def test_what_somebody_else_has_made_of_the_card_meanwhile_is_left(tmp_path: Path) -> None:
    with node("a100", "hpl") as inside:
        knob = knob_of(inside)
        writer = Writer([knob], str(tmp_path / "save"), "boot-1", inside.ports.clock)
        writer.start()
        writer.apply({knob.name: 1 + knob.words.index("3g+3g")})
        knob_of(inside).restore(MIXED)
        (done,) = writer.restore_all()
        assert done.status == "left" and knob.read() == MIXED


def test_a_card_that_cannot_be_divided_has_no_such_knob_and_says_so_by_name() -> None:
    with node("v100", "hpl") as inside:
        found, rows = find_knobs(inside.ports, discover(inside.ports)[0])
        assert not [row for row in (*found, *rows) if row.name.endswith("mig_layout")]
        assert "cannot read its MIG mode: Not Supported" in refused(lambda: knob_of(inside))


def test_after_kill_9_a_restore_makes_the_captured_layout_again(tmp_path: Path) -> None:
    with node("a100", "hpl") as inside:
        knob = knob_of(inside)
        knob.restore(MIXED)
        path = str(tmp_path / "save")
        writer = Writer([knob], path, "boot-1", inside.ports.clock)
        writer.start()
        writer.apply({knob.name: 1 + knob.words.index("1g+1g+1g+1g+1g+1g+1g")})
        writer.close()  # as the kernel does at its end; nothing is put back
        assert len(uuids(inside)) == 7
        with KnobFinder(inside.ports) as find:
            (done,) = restore_saved(path, "boot-1", find).outcomes
        assert done.status == "restored" and knob.read() == MIXED and read_save(path).knobs == {}


KILLED = """
import os, pynvml, signal, sys
from nodectl.knobs.find import open_knob
from nodectl.write.writer import Writer
from pmu.ports import Ports

class Now:
    def now_ns(self):
        return 0

ports = Ports(files=None, counters=None, nvml=pynvml, nvml_why="", clock=Now())
knobs = [open_knob(ports, f"gpu/{card}/mig_layout") for card in (0, 1)]
knobs[0].restore(sys.argv[2])
writer = Writer(knobs, sys.argv[1], "boot-1", ports.clock)
writer.start()
print([one.status for one in writer.apply({knob.name: 1 + knob.words.index("2g+2g+3g") for knob in knobs})], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

LOOK = """
import pynvml
from nodectl.knobs.find import open_knob
from pmu.ports import Ports

ports = Ports(files=None, counters=None, nvml=pynvml, nvml_why="", clock=None)
print(*(open_knob(ports, f"gpu/{card}/mig_layout").read() for card in (0, 1)), sep="; ")
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is missing: install gcc")
def test_after_kill_9_the_restorer_makes_it_again_without_python_but_not_under_a_process(
    tmp_path: Path,
    cards: Any,  # noqa: F811 # a fixture
    write_state: Any,  # noqa: F811
    read_state: Any,  # noqa: F811
    run_in_node: Any,  # noqa: F811
) -> None:
    state, restorer = write_state(cards), build(tmp_path / "nodectl-restorer")
    killed = run_in_node(sys.executable, "-c", KILLED, str(tmp_path / "save"), MIXED)
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    assert killed.stdout == "['written', 'written']\n"
    moved = "on 14@0/1 14@2/1 9@4/2"
    assert run_in_node(sys.executable, "-c", LOOK).stdout == f"{moved}; {moved}\n"

    def restored() -> list[list[str]]:
        where = ("--root", str(tmp_path), "--save", str(tmp_path / "save"), "--boot", "boot-1")
        done = run_in_node(str(restorer), "restore", *where, "--lock", str(tmp_path / "lock"))
        assert done.stderr == ""
        return [line.split("  ", 2) for line in done.stdout.splitlines()]

    busy = read_state(state)
    busy.gpu[0].process_pid = 4711
    write_state(busy)
    rows = restored()
    assert [status for _, status, _ in rows] == ["restored", "refused"]
    assert "a process computes on it" in rows[1][2]
    assert run_in_node(sys.executable, "-c", LOOK).stdout == f"{moved}; off\n"

    idle = read_state(state)
    idle.gpu[0].process_pid = 0
    write_state(idle)
    assert [row[1:] for row in restored() if len(row) == 3] == [["restored", f"{moved} to {MIXED}"]]
    assert run_in_node(sys.executable, "-c", LOOK).stdout == f"{MIXED}; off\n"
