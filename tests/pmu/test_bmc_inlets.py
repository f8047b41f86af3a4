"""Inlet temperatures: of hwmon, and from the last answer of a BMC. Answers have the published formats."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from nodectl.member.inlet_air import InletAir
from pmu.bmc.bmc_inlets import ANSWER, UPTIME, inlets
from pmu.decode import decode
from pmu.node import Instruments, discover
from pmu.readings import Quality, Sample
from tests.nodectl.small_node import sample as small_sample
from tests.pmu.trees import HWMON, SetClock, grow, ports_of

SECOND = 1_000_000_000

SDR = """\
Inlet Temp       | 04h | ok  |  7.1 | 23 degrees C
Exhaust Temp     | 01h | ok  |  7.1 | 31 degrees C
Temp             | 0Eh | ok  |  3.1 | 44 degrees C
Temp             | 10h | ns  |  3.3 | No Reading
"""
"""``ipmitool sdr type Temperature`` on a Dell PowerEdge."""

SENSOR = """\
Inlet Temp       | 22.000     | degrees C  | ok    | na        | -7.000    | 3.000     | 38.000    | 42.000    | na
Front Panel Temp | na         | degrees C  | ns    | na        | na        | na        | na        | na        | na
Fan1 RPM         | 3720.000   | RPM        | ok    | na        | 360.000   | 600.000   | na        | na        | na
"""
"""``ipmitool sensor``."""

THERMAL = {
    "@odata.id": "/redfish/v1/Chassis/System.Embedded.1/Thermal",
    "Temperatures": [
        {"Name": "Inlet Temp", "ReadingCelsius": 22, "PhysicalContext": "Intake", "Status": {"State": "Enabled"}},
        {"Name": "CPU1 Temp", "ReadingCelsius": 55, "PhysicalContext": "CPU", "Status": {"State": "Enabled"}},
        {"Name": "02-Inlet", "ReadingCelsius": 0, "PhysicalContext": "Intake", "Status": {"State": "Absent"}},
        {"Name": "Front", "ReadingCelsius": None, "PhysicalContext": "Intake"},
    ],
}
METRICS = {"TemperatureReadingsCelsius": [{"DeviceName": "Intake", "Reading": 24.8, "PhysicalContext": "Intake"}]}


def known(found: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in found.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SDR, {"Inlet Temp": 23.0}),
        (SDR.replace("ok  |  7.1 | 23 degrees C", "ns  |  7.1 | No Reading"), {"Inlet Temp": None}),
        (SENSOR, {"Inlet Temp": 22.0, "Front Panel Temp": None}),
        (json.dumps(THERMAL), {"Inlet Temp": 22.0, "02-Inlet": None, "Front": None}),
        (json.dumps(METRICS), {"Intake": 24.8}),
        (json.dumps(METRICS).replace("24.8", "1e300"), {"Intake": None}),
        (json.dumps(METRICS).replace("24.8", "9" * 400), {"Intake": None}),
        (SDR.replace("23 degrees", "9" * 30 + " degrees"), {"Inlet Temp": None}),
    ],
)
def test_an_answer_has_the_degrees_of_each_inlet(text: str, expected: dict[str, float | None]) -> None:
    assert known(inlets(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "Unable to establish IPMI v2 session", "{", "{}", '{"error": {}}', '{"Temperatures": 3}', "{" * 9999]
)
def test_what_is_no_answer_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        inlets(text)


@pytest.mark.parametrize("row", [3, {}, {"PhysicalContext": "Intake"}, {"PhysicalContext": "Intake", "Name": 7}])
def test_a_row_of_redfish_without_a_name_is_left_out(row: object) -> None:
    assert inlets(json.dumps({"Temperatures": [row]})) == {}


def answer(asked_s: float, text: str = SDR, now_s: float = 1000.0) -> dict[str, str | int]:
    return {UPTIME: f"{now_s} 5000.00", ANSWER: f"{asked_s} 400.00\n{text}"}


def test_an_answer_is_in_each_sample_until_it_gets_old_and_again_when_it_is_new(tmp_path: Path) -> None:
    clock = SetClock()
    ports = ports_of(grow(tmp_path, answer(990.0)), clock)
    layout, findings = discover(ports)
    assert [(column.name, column.part) for column in layout.columns] == [("bmc/Inlet Temp", "inlet")]
    assert "23 C now" in next(finding.why for finding in findings if finding.name == "bmc/Inlet Temp")
    instruments = Instruments(ports, layout)
    before = instruments.sweep()
    shown = []
    newer = answer(1700.0, SDR.replace("23", "29"), 1701.0)
    for contents in (answer(1040.0, now_s=1060.0), answer(1040.0, now_s=1700.0), newer):
        grow(tmp_path, contents)
        clock.time_ns += 61 * SECOND
        after = instruments.sweep()
        columns = decode(layout, before, after).columns
        shown.append((float(columns.value[0]), Quality(int(columns.quality[0]))))
        before = after
    assert shown[0] == (23.0, Quality.MEASURED) and shown[2] == (29.0, Quality.MEASURED)
    assert math.isnan(shown[1][0]) and shown[1][1] == Quality.MISSING
    instruments.close()


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({}, "let a timer put the answers"),
        (answer(100.0), "the answer is 900 s old, more than 600"),
        (answer(2000.0), "-1000 s old"),
        ({UPTIME: "1000.0 1", ANSWER: SDR}, "first line is not that of /proc/uptime"),
        (answer(990.0, "Unable to establish IPMI v2 session"), "no inlet in this answer"),
        (answer(990.0, json.dumps({"Temperatures": []})), "no inlet in this answer"),
    ],
)
def test_doctor_says_why_there_is_no_inlet(tmp_path: Path, contents: dict[str, str | int], says: str) -> None:
    layout, findings = discover(ports_of(grow(tmp_path, contents), SetClock()))
    assert not layout.columns
    assert says in next(finding.why for finding in findings if finding.name == "inlet")


def test_a_sensor_that_is_stuck_far_outside_is_clipped_and_not_reported(tmp_path: Path) -> None:
    contents = answer(990.0, SDR.replace("23 degrees", "200 degrees")) | {
        f"{HWMON}/hwmon0/name": "tmp75",
        f"{HWMON}/hwmon0/temp1_input": 27_500,
        f"{HWMON}/hwmon0/temp1_label": "Inlet left",
        f"{HWMON}/hwmon1/name": "tmp75",
        f"{HWMON}/hwmon1/temp1_input": 61_000,
        f"{HWMON}/hwmon1/temp1_label": "VRM",
        f"{HWMON}/hwmon2/name": "tmp421",
        f"{HWMON}/hwmon2/temp1_input": 127_938,
        f"{HWMON}/hwmon2/temp1_label": "Inlet right",
    }
    clock = SetClock()
    ports = ports_of(grow(tmp_path, contents), clock)
    layout, _ = discover(ports)
    assert [column.name for column in layout.columns if column.part == "inlet"] == [
        "hwmon0/tmp75/Inlet left", "hwmon2/tmp421/Inlet right", "bmc/Inlet Temp",
    ]  # fmt: skip
    instruments = Instruments(ports, layout)
    before = instruments.sweep()
    clock.time_ns += SECOND
    columns = decode(layout, before, instruments.sweep()).columns
    instruments.close()
    sample: Sample = small_sample(layout, elapsed_s=1.0)
    assert [int(columns.quality[row]) for row in (1, 2)] == [Quality.CLIPPED] * 2
    air = InletAir(layout)
    assert air.mk(replace(sample, columns=columns)) == 300_650
    assert air.mk(replace(sample, columns=replace(columns, quality=columns.quality * 0 + 9))) == -1
