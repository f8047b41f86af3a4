"""GPUs are put back by their UUIDs: the driver may number them otherwise by then, or have other cards."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="pynvml is missing: install nvidia-ml-py")

from nodectl.build_restorer import build
from nodectl.knobs import Knob, KnobError, find_knobs
from nodectl.knobs.find import KnobFinder, open_knob
from nodectl.knobs.recipe import NvmlRecipe
from nodectl.write.device_names import saved_name
from nodectl.write.restore import restore_saved
from nodectl.write.saves import Save, read_save
from nodectl.write.writer import Writer
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_protocol import KnobEntry
from pmu.node import discover
from pmu.ports import Ports
from tests.nodectl.file_tree import file_node
from tests.nodectl.test_agent import node
from tests.nodectl.test_restorer import BOOT, restore, rows
from twin.in_process_node import InProcess

ORDERS = [*itertools.permutations(range(4)), (1, 2, 3), (3, 0), (2,), ()]
"""The cards as another process numbers them: all orders, and with cards lost."""

OWN_MW = (310_000, 320_000, 330_000, 340_000)
"""What each card was limited to."""


class OtherOrder:
    """``pynvml`` of a process in which the driver has found ``cards``, in this order."""

    def __init__(self, nvml: Any, cards: Sequence[int]) -> None:
        self._nvml, self._cards = nvml, cards

    def __getattr__(self, name: str) -> Any:
        ours = {
            "nvmlDeviceGetCount": self._count,
            "nvmlDeviceGetHandleByIndex": self._by_index,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetIndex": self._index,
        }
        return ours.get(name) or getattr(self._nvml, name)

    def _count(self) -> int:
        return len(self._cards)

    def _by_index(self, index: int) -> Any:
        if index >= len(self._cards):
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._nvml.nvmlDeviceGetHandleByIndex(self._cards[index])

    def _by_uuid(self, uuid: str) -> Any:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        if self._nvml.nvmlDeviceGetIndex(handle) not in self._cards:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_FOUND)
        return handle

    def _index(self, handle: Any) -> int:
        return self._cards.index(self._nvml.nvmlDeviceGetIndex(handle))


@pytest.fixture
def inside() -> Iterator[InProcess]:
    with node("xh2415", "easywave") as made:
        for card, limit_mw in enumerate(OWN_MW):
            made.twin.gpus.gpu[card].power_limit_mw = limit_mw
        yield made


def limits(inside: InProcess) -> list[int]:
    return [int(inside.twin.gpus.gpu[card].power_limit_mw) for card in range(4)]


def knobs_of(inside: InProcess, cards: Sequence[int]) -> tuple[Ports, list[Knob]]:
    ports = replace(inside.ports, nvml=OtherOrder(inside.ports.nvml, cards))
    layout, _ = discover(ports)
    return ports, [knob for knob in find_knobs(ports, layout)[0] if knob.name.startswith("gpu/")]


def a_killed_run(inside: InProcess, path: Path, cards: Sequence[int] = (0, 1, 2, 3)) -> None:
    """It has limited every card to 200 W and locked the third one."""
    ports, knobs = knobs_of(inside, cards)
    writer = Writer(knobs, str(path), BOOT, ports.clock)
    writer.start()
    wanted = {knob.name: 200_000 for knob in knobs if knob.unit == "mw"} | {"gpu/2/sm_clock_mhz": 1095}
    assert {outcome.status for outcome in writer.apply(wanted)} == {"written"}
    writer.close()
    assert limits(inside) == [200_000] * 4


@pytest.mark.parametrize("cards", ORDERS)
def test_each_card_gets_back_its_own_limit_whatever_its_number_is_by_then(
    inside: InProcess, tmp_path: Path, cards: tuple[int, ...]
) -> None:
    path = tmp_path / "captured.jsonl"
    a_killed_run(inside, path)
    ports, _ = knobs_of(inside, cards)
    with KnobFinder(ports) as find:
        restore_saved(str(path), BOOT, find)
    assert limits(inside) == [own if card in cards else 200_000 for card, own in enumerate(OWN_MW)]
    assert (inside.twin.gpus.gpu[2].lock_max_mhz == 0) == (2 in cards)
    _, all_knobs = knobs_of(inside, (0, 1, 2, 3))
    with Writer(all_knobs, str(path), BOOT, ports.clock):
        assert tuple(limits(inside)) == OWN_MW, "the next run puts back what was not there, too"
    assert not path.exists()


@pytest.mark.parametrize("cards", [(3, 2, 1, 0), (1, 2, 3), (0, 1)])
def test_a_run_that_follows_keeps_the_captures_of_cards_that_it_does_not_have(
    inside: InProcess, tmp_path: Path, cards: tuple[int, ...]
) -> None:
    path = tmp_path / "captured.jsonl"
    a_killed_run(inside, path)
    ports, knobs = knobs_of(inside, cards)
    with Writer(knobs, str(path), BOOT, ports.clock) as writer:
        here = {f"gpu/{number}/power_limit_mw": 150_000 for number in range(len(cards))}
        assert {outcome.status for outcome in writer.apply(here)} == {"written"}
        assert limits(inside) == [150_000 if card in cards else 200_000 for card in range(4)]
    assert limits(inside) == [own if card in cards else 200_000 for card, own in enumerate(OWN_MW)]
    left = read_save(str(path)).knobs if path.exists() else {}
    uuids = [
        inside.ports.nvml.nvmlDeviceGetUUID(inside.ports.nvml.nvmlDeviceGetHandleByIndex(card)) for card in range(4)
    ]
    missing = [card for card in range(4) if card not in cards]
    assert {name.split("/")[1] for name in left} == {uuids[card] for card in missing}
    assert all(isinstance(captured.recipe, NvmlRecipe) and captured.recipe.uuid for captured in left.values())


def test_a_save_of_0_2_0_is_read_by_the_numbers_that_it_has(inside: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "captured.jsonl"
    names = {f"gpu/{card}/power_limit_mw": NvmlRecipe(card, "power_limit") for card in range(4)}
    save = Save(str(path), BOOT, names.get)
    save.capture({name: str(own) for name, own in zip(names, OWN_MW, strict=True)})
    save.wrote(dict.fromkeys(names, 200_000))
    save.close()
    for card in range(4):
        inside.twin.gpus.gpu[card].power_limit_mw = 200_000 if card != 1 else 150_000  # a stricter one is theirs
    ports, knobs = knobs_of(inside, (0, 1, 2, 3))
    writer = Writer(knobs, str(path), BOOT, ports.clock)
    outcomes = {outcome.knob: outcome.status for outcome in writer.start().outcomes}
    assert outcomes == {name: "left" if "/1/" in name else "restored" for name in names}
    assert limits(inside) == [310_000, 150_000, 330_000, 340_000] and not path.exists()
    writer.close()


def test_a_save_of_0_2_0_that_cannot_be_put_back_yet_goes_on_by_uuid(inside: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "captured.jsonl"
    save = Save(str(path), BOOT, lambda name: NvmlRecipe(1, "power_limit"))
    save.capture({"gpu/1/power_limit_mw": "320000"})
    save.limit_restores({"gpu/1/power_limit_mw": 200_000})
    save.close()
    ports, knobs = knobs_of(inside, (0, 1, 2, 3))
    writer = Writer(knobs, str(path), BOOT, ports.clock)
    writer.start()
    assert writer.captured == {"gpu/1/power_limit_mw": "320000"} and limits(inside)[1] == 200_000
    (name,) = read_save(str(path)).knobs
    assert name == saved_name(next(knob for knob in knobs if knob.name == "gpu/1/power_limit_mw"))
    writer.limit_restores({})
    assert {outcome.status for outcome in writer.restore_all()} == {"restored"}
    assert limits(inside)[1] == 320_000 and not path.exists()
    writer.close()


def test_a_knob_follows_its_card_when_the_driver_begins_again(inside: InProcess) -> None:
    cards = [0, 1, 2, 3]
    ports, knobs = knobs_of(inside, cards)
    knob = next(knob for knob in knobs if knob.name == "gpu/1/power_limit_mw")
    inside.faults.add_line("no-driver gpu:*")
    with pytest.raises(KnobError) as error:
        knob.set(150_000)
    assert error.value.status == "vanished"
    inside.faults.clear()
    cards[:] = [2, 1, 0]
    knob.set(150_000)
    assert limits(inside) == [310_000, 150_000, 330_000, 340_000]
    assert open_knob(ports, "gpu/0/power_limit_mw").read() == "330000", "and a new knob has the new number"


def test_a_knob_that_is_another_cards_in_the_writer_process_is_not_used() -> None:
    writer = RemoteWriter.__new__(RemoteWriter)
    writer._entries = [KnobEntry(f"gpu/{n}/power_limit_mw", 1, 2, "", f"GPU-{card}") for n, card in enumerate("acd")]
    writer._entries.append(KnobEntry("cpu/policy0/max_khz", 1, 2, "/sys/x"))
    writer.know_cards({"GPU-a": 0, "GPU-b": 1, "GPU-c": 2})
    names = ["gpu/0/power_limit_mw", "gpu/1/power_limit_mw", "gpu/2/power_limit_mw", "cpu/policy0/max_khz"]
    assert writer.lacks(names) == ["gpu/1/power_limit_mw", "gpu/2/power_limit_mw"]
    assert writer._ours(dict.fromkeys(names, 1)) == {"gpu/0/power_limit_mw": 1, "cpu/policy0/max_khz": 1}


SHUFFLED = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char *const UUIDS[] = {"GPU-c", "GPU-a"}; /* GPU-b is lost */
static void note(void *device, unsigned value)
{
    FILE *file = fopen(getenv("NVML_NOTES"), "a");
    fprintf(file, "%s %u\n", UUIDS[(size_t)device - 1], value);
    fclose(file);
}
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : "?"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned gpu, void **device)
{
    *device = (void *)(size_t)(gpu + 1);
    return gpu < 2 ? 0 : 6;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    for (size_t at = 0; at < 2; at++)
        if (strcmp(uuid, UUIDS[at]) == 0) {
            *device = (void *)(at + 1);
            return 0;
        }
    return 6;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = 900; return 0 * type; }
int nvmlDeviceResetGpuLockedClocks(void *device) { note(device, 0); return 0; }
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned least, unsigned most)
{
    note(device, most);
    return 0 * (int)least;
}
static unsigned now_mw[3];
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw)
{
    *mw = now_mw[(size_t)device] ? now_mw[(size_t)device] : 200000;
    return 0;
}
int nvmlDeviceSetPowerManagementLimit(void *device, unsigned mw)
{
    now_mw[(size_t)device] = mw;
    note(device, mw);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is missing: install gcc")
def test_the_restorer_finds_cards_by_uuid_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvml.c").write_text(SHUFFLED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_NOTES", str(tmp_path / "notes"))
    recipes = {
        f"gpu/GPU-{card}/{what}": NvmlRecipe(number, call, f"GPU-{card}")  # type: ignore[arg-type]
        for number, card in enumerate("abc")
        for what, call in (("power_limit_mw", "power_limit"), ("sm_clock_mhz", "clock_lock"))
    }
    save = Save(str(tmp_path / "captured.jsonl"), BOOT, recipes.get)
    own = {"a": 310_000, "b": 320_000, "c": 330_000}
    save.capture({name: str(own[name[8]]) if "power" in name else "unlocked" for name in recipes})
    save.wrote({name: 200_000 if "power" in name else 900 for name in recipes})
    save.close()
    done = restore(build(tmp_path / "nodectl-restorer"), file_node(tmp_path / "node"), Path(save.path))
    statuses = {name: status for name, status, _ in rows(done)}
    assert statuses == {name: "vanished" if "GPU-b" in name else "restored" for name in recipes}
    notes = (tmp_path / "notes").read_text().splitlines()
    assert sorted(notes) == ["GPU-a 0", "GPU-a 310000", "GPU-c 0", "GPU-c 330000"]
    assert set(read_save(save.path).knobs) == {name for name in recipes if "GPU-b" in name}, "it waits for its card"
