"""Instruments that register columns: when their files are read, and which hwmon inputs the loop reads."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmu.decode import decode
from pmu.instruments.column_files import ColumnFiles
from pmu.layout import Column
from pmu.node import Instruments, discover
from pmu.readings import RAW_MISSING, Quality, type_i64
from tests.pmu.trees import CPU, HWMON, SetClock, grow, ports_of, type_tree

SECOND = 1_000_000_000
DOCS = Path(__file__).parents[2] / "docs"

FOUR_SLOW = [
    Column(instrument="test", name=f"slow-{i}", unit="C", kind="level", source=f"/slow/{i}", period_s=1.0)
    for i in range(4)
]
QUICK = Column(instrument="test", name="quick", unit="J", kind="counter", source="/quick")


def read(files: ColumnFiles, time_ns: int) -> list[int]:
    out: type_i64 = np.zeros(5, np.int64)
    files.sweep(time_ns, out)
    return out.tolist()


def test_slow_files_are_read_once_in_their_period_and_not_all_in_one_sweep(tmp_path: Path) -> None:
    def shows(value: int) -> type_tree:
        return {f"/slow/{i}": value for i in range(4)} | {"/quick": value}

    files = ColumnFiles(ports_of(grow(tmp_path, shows(1)), SetClock()), [*FOUR_SLOW[:2], QUICK, *FOUR_SLOW[2:]])
    assert read(files, 0) == [1, 1, 1, 1, 1], "the first sweep reads everything"
    grow(tmp_path, shows(2))
    assert read(files, SECOND // 8) == [1, 1, 2, 1, 1]
    assert read(files, SECOND // 4) == [2, 1, 2, 1, 1]
    assert read(files, SECOND // 2) == [2, 2, 2, 1, 1]
    grow(tmp_path, shows(3))
    assert read(files, SECOND) == [2, 2, 3, 3, 3]
    assert read(files, SECOND + SECOND // 4) == [3, 2, 3, 3, 3]
    files.close()
    assert read(files, 9 * SECOND) == [RAW_MISSING] * 5


def test_a_file_that_ceases_to_be_read_is_missing_with_its_reason_until_it_is_back(tmp_path: Path) -> None:
    tree: type_tree = {f"/slow/{i}": 7 for i in range(4)}
    files = ColumnFiles(ports_of(grow(tmp_path, tree), SetClock()), [*FOUR_SLOW, QUICK])
    assert read(files, 0) == [7, 7, 7, 7, RAW_MISSING] and [bool(error) for error in files.errors()] == [False] * 4 + [
        True
    ]
    grow(tmp_path, {"/slow/1": "broken"})
    assert read(files, SECOND) == [7, RAW_MISSING, 7, 7, RAW_MISSING]
    grow(tmp_path, {"/slow/1": 8})
    assert read(files, SECOND + SECOND // 2) == [7, RAW_MISSING, 7, 7, RAW_MISSING], "it is not read before its time"
    assert read(files, 2 * SECOND) == [7, 8, 7, 7, RAW_MISSING]
    files.close()


def test_a_counter_has_no_period_of_its_own() -> None:
    with pytest.raises(ValueError, match="a counter is read at every sweep"):
        Column(instrument="test", name="joules", unit="J", kind="counter", period_s=1.0)


def test_the_instrument_that_the_manual_writes_is_read_as_the_manual_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [page.read_text() for page in sorted(DOCS.glob("extending*.md"))]
    (code,) = (
        block for page in pages for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def find" in block
    )
    written: dict[str, Any] = {}
    exec(compile(code, "the manual", "exec"), written)
    monkeypatch.setattr("pmu.node.INSTRUMENTS", (written["INSTRUMENT"],))

    def throttled(times: int) -> type_tree:
        tree: type_tree = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            tree[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = cpu // 2
            tree[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = cpu
            tree[f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count"] = times * (1 + cpu // 2)
        return tree

    clock = SetClock()
    ports = ports_of(grow(tmp_path, throttled(5)), clock)
    layout, findings = discover(ports)
    assert [column.name for column in layout.columns] == ["package-0/throttled", "package-1/throttled"]
    assert [finding.why for finding in findings if finding.kind == "sensor"] == ["5 now", "10 now"]
    instruments = Instruments(ports, layout)
    before = instruments.sweep()
    grow(tmp_path, throttled(8))
    clock.time_ns = SECOND
    assert decode(layout, before, instruments.sweep()).columns.value.tolist() == [3.0, 6.0]
    instruments.close()
    _, findings = discover(ports_of(grow(tmp_path / "other", {f"{CPU}/online": "0"}), clock))
    assert "no thermal_throttle counter" in next(finding.why for finding in findings if finding.kind == "sensor")


SERVER: type_tree = {
    f"{HWMON}/hwmon0/name": "coretemp",
    f"{HWMON}/hwmon0/temp1_input": 45_500,
    f"{HWMON}/hwmon0/temp1_label": "Package id 0",
    f"{HWMON}/hwmon0/temp1_crit_alarm": 0,
    f"{HWMON}/hwmon0/temp2_input": 44_000,
    f"{HWMON}/hwmon0/temp2_label": "Core 0",
    f"{HWMON}/hwmon0/temp2_crit_alarm": 0,
    f"{HWMON}/hwmon1/name": "power_meter",
    f"{HWMON}/hwmon1/power1_average": 412_000_000,
    f"{HWMON}/hwmon2/name": "xe",
    f"{HWMON}/hwmon2/energy1_input": 5_000_000,
}


def test_the_loop_reads_the_hwmon_inputs_that_are_known_to_be_quick_and_people_see_them_all(tmp_path: Path) -> None:
    ports = ports_of(grow(tmp_path, SERVER), SetClock())
    layout, findings = discover(ports)
    assert [(column.name, column.part, column.kind) for column in layout.columns] == [
        ("hwmon0/coretemp/Package id 0", "package", "level"),
        ("hwmon0/coretemp/Package id 0/critical", "package", "flag"),
    ]
    whys = {finding.name: finding.why for finding in findings if finding.kind == "sensor" and finding.present}
    assert whys == {
        "hwmon0/coretemp/Package id 0": "46 C now",
        "hwmon0/coretemp/Package id 0/critical": "0 now",
        "hwmon0/coretemp/Core 0": "44 C now",
        "hwmon1/power_meter/power1": "412 W now",
        "hwmon2/xe/energy1": "5 J now",
    }
    instruments = Instruments(ports, layout)
    shown = {reading.name: reading.value for reading in instruments.readings()}
    assert shown["hwmon2/xe/energy1"] == 5.0 and shown["hwmon0/coretemp/Package id 0"] == 45.5
    instruments.close()


def test_a_temperature_and_its_alarm_are_in_each_sample_until_the_chip_is_gone(tmp_path: Path) -> None:
    clock = SetClock()
    ports = ports_of(grow(tmp_path, SERVER), clock)
    layout, _ = discover(ports)
    instruments = Instruments(ports, layout)
    sweeps = [instruments.sweep()]
    for celsius, alarm in ((101_000, 1), ("gone", "gone")):
        grow(tmp_path, {f"{HWMON}/hwmon0/temp1_input": celsius, f"{HWMON}/hwmon0/temp1_crit_alarm": alarm})
        clock.time_ns += 2 * SECOND
        sweeps.append(instruments.sweep())
    hot, gone = (decode(layout, sweeps[0], sweep).columns for sweep in sweeps[1:])
    assert hot.value.tolist() == [101.0, 1.0] and set(hot.quality) == {Quality.MEASURED}
    assert all(math.isnan(value) for value in gone.value) and set(gone.quality) == {Quality.MISSING}
    instruments.close()
