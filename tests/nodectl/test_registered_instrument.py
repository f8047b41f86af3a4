"""One object registers an instrument; what follows from it, nobody writes again."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nodectl.cli import main
from nodectl.config import Config
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.format import decode_keyframe, encode_keyframe
from nodectl.loop.agent import Agent
from nodectl.loop.survey import survey
from pmu.decode import decode
from pmu.instruments.instrument import Found, Instrument
from pmu.instruments.registered import INSTRUMENTS
from pmu.layout import Column, Layout
from pmu.node import Instruments, discover
from pmu.ports import Ports
from pmu.readings import RAW_MISSING, Quality, type_i64
from twin.faults.active import Fault, Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

COLUMNS = (
    Column(instrument="pump", name="pump/litres", unit="l", kind="counter", per_unit=10.0, range=999, most_per_s=50.0),
    Column(instrument="pump", name="pump/pressure", unit="bar", kind="level", per_unit=100.0, lowest=0.0, highest=9.0),
    Column(instrument="pump", name="pump/alarms", unit="", kind="flag"),
)


class Pump:
    """A coolant pump on a bus of its own: it is no file, so it brings a reader."""

    def __init__(self) -> None:
        self.rows = iter([(950, 250, 0), (50, 1000, 4), (60, RAW_MISSING, 4), (70, 250, 0)])

    def sweep(self, time_ns: int, out: type_i64) -> None:
        out[:] = next(self.rows, (RAW_MISSING,) * 3)

    def errors(self) -> list[int]:
        return [0] * 3

    def close(self) -> None:
        pass


PUMP = Instrument("pump", lambda ports: Found(COLUMNS), lambda ports, columns: Pump())


@pytest.fixture
def curie(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., InProcess]]:
    opened: list[InProcess] = []

    def make(*instruments: Instrument, faults: tuple[Fault, ...] = ()) -> InProcess:
        monkeypatch.setattr("pmu.node.INSTRUMENTS", instruments)
        machine = load_machine("curie")
        twin = Twin(machine, load_workload("hpl", machine, seed=1), seed=1)
        opened.append(InProcess(twin, Faults(twin, list(faults))))
        return opened[-1]

    yield make
    for node in opened:
        node.close()


def run(ports: Ports, directory: Path, seconds: float) -> list[str]:
    said: list[str] = []
    agent = Agent.open(ports, Config(mode="optimize", state_dir=str(directory)), said.append)
    try:
        agent.run(until_ns=ports.clock.now_ns() + round(seconds * 1e9))
    finally:
        agent.stop()
    return said


def test_layout_sweep_sample_and_findings_have_what_one_object_registers(curie: Callable[..., InProcess]) -> None:
    ports = curie(PUMP).ports
    layout, _ = discover(ports)
    assert layout.columns == COLUMNS
    instruments = Instruments(ports, layout)
    before = instruments.sweep()
    ports.clock.sleep_until_ns(ports.clock.now_ns() + 1_000_000_000)
    columns = decode(layout, before, instruments.sweep()).columns
    assert columns.value.tolist() == pytest.approx([9.9, 9.0, 4.0])
    assert columns.quality.tolist() == [Quality.WRAPPED, Quality.CLIPPED, Quality.MEASURED]
    instruments.close()
    rows = {row.name: row for row in survey(ports).sensor_rows}
    assert [rows[column.name].why for column in COLUMNS] == ["95 l now", "2 bar now", "0 now"]


def test_journal_replay_export_and_notices_follow(
    curie: Callable[..., InProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(curie(PUMP).ports, tmp_path, 0.5)
    assert "readings of pump/pressure went missing" in said and "readings of pump/pressure are back" in said
    records = list(open_journal(tmp_path / "journal"))
    assert records[0].keyframe.layout.columns == COLUMNS
    assert [record.raw.columns.tolist() for record in records[:4]] == [
        [950, 250, 0],
        [50, 1000, 4],
        [60, RAW_MISSING, 4],
        [70, 250, 0],
    ]
    assert replay(open_journal(tmp_path / "journal")).is_equal
    table = tmp_path / "run.csv"
    assert main(["replay", str(tmp_path / "journal"), "--export", str(table)]) == 0
    capsys.readouterr()
    with table.open() as file:
        pressure = [row for row in csv.DictReader(file) if row["part"] == "pump/pressure"]
    shown = [(row["reading"], row["unit"], row["quality"]) for row in pressure[:3]]
    assert shown == [("9.0", "bar", "clipped"), ("", "bar", "missing"), ("2.5", "bar", "measured")]


def test_a_keyframe_of_a_node_without_such_instruments_is_written_as_before_there_were_any(
    curie: Callable[..., InProcess], tmp_path: Path
) -> None:
    run(curie().ports, tmp_path, 0.3)
    keyframe = next(iter(open_journal(tmp_path / "journal"))).keyframe
    payload = encode_keyframe(keyframe)
    fields = msgspec.msgpack.decode(zlib.decompress(payload))
    assert list(fields["layout"]) == [name for name in Layout.__struct_fields__ if name not in ("columns", "ranges")]
    again = decode_keyframe(payload)
    assert again.layout.columns == () and again.previous == keyframe.previous


def test_temperatures_of_an_emulated_node_are_in_its_journal_with_their_quality(
    curie: Callable[..., InProcess], tmp_path: Path
) -> None:
    fault = Fault("missing", "/sys/class/hwmon/hwmon1/temp1_input", at_s=2.5, for_s=2.0)
    said = run(curie(*INSTRUMENTS, faults=(fault,)).ports, tmp_path, 6.0)
    sensor = "hwmon1/coretemp/Package id 1"
    assert f"readings of {sensor} went missing" in said and f"readings of {sensor} are back" in said
    records = list(open_journal(tmp_path / "journal"))
    layout = records[0].keyframe.layout
    row = [column.name for column in layout.columns].index(sensor)
    samples = [decode(layout, record.previous, record.raw) for record in records if record.previous]
    shown = np.array([sample.columns.value[row] for sample in samples])
    assert np.isnan(shown).any() and (shown[~np.isnan(shown)] > 20.0).all() and not np.isnan(shown[[0, -1]]).any()
