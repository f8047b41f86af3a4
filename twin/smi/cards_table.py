"""The table that ``nvidia-smi`` prints without options: three lines a card, and the processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml as nvml

from twin.smi.card_fields import OF_CARD, OF_PROCESS, Subject, processes

_LEFT, _MIDDLE, _RIGHT = 41, 24, 22
_WIDTH = _LEFT + _MIDDLE + _RIGHT + 2


def lines(cards: Sequence[Any]) -> Iterator[str]:
    """All lines of the table."""
    yield time.strftime("%a %b %e %H:%M:%S %Y")
    yield f"+{'-' * _WIDTH}+"
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    versions = (
        f"Driver Version: {nvml.nvmlSystemGetDriverVersion()}     CUDA Version: {cuda // 1000}.{cuda // 10 % 100}"
    )
    yield f"| {'emulated GPUs':<{_WIDTH - len(versions) - 3}} {versions} |"
    yield _rule("-")
    yield _row("GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC")
    yield _row("Fan  Temp   Perf          Pwr:Usage/Cap", "         Memory-Usage", "GPU-Util  Compute M.")
    yield _row("", "", "MIG M.")
    yield _rule("=")
    for card in cards:
        yield from _card(Subject(card))
        yield _rule("-")
    yield ""
    yield from _processes(cards)


def _card(subject: Subject) -> Iterator[str]:
    def shown(name: str, with_unit: bool = False) -> str:
        text = OF_CARD[name].value(subject, with_unit)
        return text.strip("[]").replace("Enabled", "On").replace("Disabled", "Off")

    def whole(name: str) -> str:
        return shown(name).partition(".")[0]

    watts = f"{whole('power.draw')}W / {whole('power.limit')}W"
    memory = f"{shown('memory.used')}MiB / {shown('memory.total')}MiB"
    name = shown("name")[:25]
    yield _row(
        f"{shown('index'):>3}  {name:<25} {shown('persistence_mode'):>7}",
        f"{shown('pci.bus_id')} {shown('display_active')}",
        "0" if shown("ecc.mode.current") == "On" else "N/A",
    )
    yield _row(
        f"{shown('fan.speed')}   {shown('temperature.gpu')}C    {shown('pstate')}  {watts:>20}",
        memory,
        f"{shown('utilization.gpu')}%      {shown('compute_mode')}",
    )
    yield _row("", "", OF_CARD["mig.mode.current"].value(subject, False).strip("[]"))


def _processes(cards: Sequence[Any]) -> Iterator[str]:
    yield f"+{'-' * _WIDTH}+"
    yield f"| {'Processes:':<{_WIDTH - 2}} |"
    yield f"| {'GPU    PID      Type   Process name':<{_WIDTH - 20}} {'GPU Memory':>17} |"
    yield f"|{'=' * _WIDTH}|"
    found = [Subject(card, process) for card in cards for process in processes(card)]
    for subject in found:
        assert subject.process
        memory = OF_PROCESS["used_gpu_memory"].value(subject, False)
        name = OF_PROCESS["process_name"].value(subject, False)
        index = OF_CARD["index"].value(subject, False)
        about = f"{index:>3} {subject.process.pid:>7}      C     {name[-40:]}"
        yield f"| {about:<{_WIDTH - 20}} {memory + 'MiB':>17} |"
    if not found:
        yield f"| {'No running processes found':<{_WIDTH - 2}} |"
    yield f"+{'-' * _WIDTH}+"


def _row(left: str, middle: str, right: str) -> str:
    return f"| {left:<{_LEFT - 2}} | {middle:>{_MIDDLE - 2}} | {right:>{_RIGHT - 2}} |"


def _rule(line: str) -> str:
    return f"+{line * _LEFT}+{line * _MIDDLE}+{line * _RIGHT}+"
