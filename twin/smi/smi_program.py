"""``nvidia-smi`` of a served twin: reads and sets the emulated cards over NVML, as monitoring programs expect.

Exit statuses are those of the driver's program: 0, 2 wrong argument, 3 not supported by the card, 4 no permission, 6 no
such card, 9 no driver, 12 no NVML, 13 no such function, 15 a card is lost, 255 another error (its manual page,
"RETURN VALUE").
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import pynvml as nvml

from twin.smi import cards_table, mig_program
from twin.smi.card_fields import (
    OF_CARD,
    OF_CLOCKS,
    OF_PROCESS,
    Field,
    Subject,
    UnknownFieldError,
    bus_id,
    chosen,
    processes,
    supported_clocks,
)
from twin.smi.request import EARLY_END, OTHER, SEE_HELP, STATUSES, WRONG_USE, Parser, Refused, chosen_cards

_ABOUT = "nvidia-smi of nodectl's twin: shows and sets the emulated GPUs of this run. It is not the driver's program."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        if words[:1] == ["mig"]:
            return mig_program.run(words[1:])
        options = _parsed(words)
        nvml.nvmlInit()
        return _run(options)
    except Refused as refused:
        print(refused)
        return refused.status
    except nvml.NVMLError as error:
        print(f"nvidia-smi: {error}")
        return STATUSES.get(error.value, OTHER)
    except BrokenPipeError:
        sys.stderr.close()  # the interpreter would complain about standard output at its end
        return OTHER
    except OSError as error:
        print(f"nvidia-smi: {error}")
        return OTHER
    except KeyboardInterrupt:
        return 0  # the usual end of a loop


# ---- options -------------------------------------------------------------------------------------------------------


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="nvidia-smi", description=_ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add("-L", "--list-gpus", action="store_true", help="list the cards")
    add("-i", "--id", metavar="ID,...", help="only these cards: by index, UUID, serial number or PCI bus address")
    for query, known in _QUERIES.items():
        add(f"--query-{query}", metavar="FIELD,...", help=f"print these fields ({len(known.fields)} are known)")
        add(f"--help-query-{query}", action="store_true", help="list the fields")
    add("--format", metavar="csv[,noheader][,nounits]", help="format of a query")
    add("-f", "--filename", metavar="FILE", help="write to this file")
    add("-l", "--loop", type=float, nargs="?", const=5.0, metavar="SECONDS", help="repeat until interrupted")
    add("-lms", "--loop-ms", type=float, metavar="MILLISECONDS", help="repeat until interrupted")
    add("-pm", "--persistence-mode", metavar="0|1", help="persistence mode")
    add("-pl", "--power-limit", metavar="WATTS", help="power limit")
    add("-lgc", "--lock-gpu-clocks", metavar="MIN,MAX", help="lock the GPU's clock in this range, MHz")
    add("-rgc", "--reset-gpu-clocks", action="store_true", help="unlock it")
    add("-ac", "--applications-clocks", metavar="MEMORY,GRAPHICS", help="applications clocks, a supported pair, MHz")
    add("-rac", "--reset-applications-clocks", action="store_true", help="applications clocks as at the start")
    add("-lmc", "--lock-memory-clocks", metavar="MIN,MAX", help="lock the memory's clock in this range, MHz")
    add("-rmc", "--reset-memory-clocks", action="store_true", help="unlock it")
    add("-mig", "--multi-instance-gpu", metavar="0|1", help="MIG mode; `nvidia-smi mig -h` divides a card in it")
    options, others = parser.parse_known_args(arguments)
    if others:
        raise Refused(f"ERROR: Option {others[0]} is not recognized. {SEE_HELP}\n", WRONG_USE)
    return options


def _run(options: argparse.Namespace) -> int:
    for query, about in _QUERIES.items():
        if getattr(options, f"help_query_{query}".replace("-", "_")):
            print(*sorted(about.fields), sep="\n")
            return 0
    print_once = _printer(options)
    cards = chosen_cards(options.id)
    if _set(options, cards):
        return 0
    period_s = options.loop_ms / 1000 if options.loop_ms else options.loop
    with open(options.filename, "w") if options.filename else contextlib.nullcontext(sys.stdout) as out:
        is_first = True
        while True:
            print_once(cards, out, is_first)
            out.flush()
            is_first = False
            if not period_s:
                return 0
            time.sleep(period_s)


# ---- printing ------------------------------------------------------------------------------------------------------

_Print = Callable[[Sequence[Any], TextIO, bool], None]


@dataclass(frozen=True, slots=True)
class _Query:
    fields: dict[str, Field]
    subjects: Callable[[Any], Iterator[Subject]]


def _subjects_of_processes(card: Any) -> Iterator[Subject]:
    return (Subject(card, process) for process in processes(card))


def _subjects_of_clocks(card: Any) -> Iterator[Subject]:
    return (Subject(card, clocks=pair) for pair in supported_clocks(card))


_QUERIES = {
    "gpu": _Query(OF_CARD, lambda card: iter((Subject(card),))),
    "compute-apps": _Query(OF_PROCESS, _subjects_of_processes),
    "supported-clocks": _Query(OF_CLOCKS, _subjects_of_clocks),
}


def _printer(options: argparse.Namespace) -> _Print:
    for query, about in _QUERIES.items():
        names = getattr(options, f"query_{query}".replace("-", "_"))
        if names is not None:
            try:
                return _query_printer(about, chosen(names, about.fields), options.format)
            except UnknownFieldError as unknown:
                raise Refused(f'Field "{unknown}" is not a valid field to query.\n', WRONG_USE) from None
    return _print_list if options.list_gpus else _print_table


def _query_printer(about: _Query, fields: Sequence[Field], form: str | None) -> _Print:
    words = [word.strip() for word in (form or "").split(",")]
    if words[0] != "csv" or set(words[1:]) - {"noheader", "nounits"}:
        raise Refused("ERROR: a query needs --format=csv[,noheader][,nounits].\n", WRONG_USE)
    has_header, has_units = "noheader" not in words, "nounits" not in words

    def print_query(cards: Sequence[Any], out: TextIO, is_first: bool) -> None:
        if has_header and is_first:
            print(", ".join(field.header() for field in fields), file=out)
        for card in cards:
            for subject in about.subjects(card):
                print(", ".join(field.value(subject, has_units) for field in fields), file=out)

    return print_query


def _print_list(cards: Sequence[Any], out: TextIO, _: bool) -> None:
    for card in cards:
        index, name, uuid = (OF_CARD[field].value(Subject(card), False) for field in ("index", "name", "uuid"))
        print(f"GPU {index}: {name} (UUID: {uuid})", file=out)
        for number, device in enumerate(mig_program.devices(card)):
            profile = nvml.nvmlDeviceGetName(device).partition(" MIG ")[2]
            uuid = nvml.nvmlDeviceGetUUID(device)
            print(f"  MIG {profile:<15} Device {number:>2}: (UUID: {uuid})", file=out)


def _print_table(cards: Sequence[Any], out: TextIO, _: bool) -> None:
    print(*cards_table.lines(cards), sep="\n", file=out)


# ---- settings ------------------------------------------------------------------------------------------------------


def _set(options: argparse.Namespace, cards: Sequence[Any]) -> bool:
    """Carry out the settings that the options have; False if they have none."""
    wanted: list[tuple[Any, str, Callable[[Any, str], str]]] = [
        (options.persistence_mode, "persistence mode", _set_persistence),
        (options.power_limit, "power limit", _set_power_limit),
        (options.lock_gpu_clocks, "clocks", _lock_clocks),
        (options.reset_gpu_clocks, "clocks", lambda card, _: _empty(nvml.nvmlDeviceResetGpuLockedClocks(card))),
        (options.lock_memory_clocks, "clocks", _lock_memory_clocks),
        (options.reset_memory_clocks, "clocks", lambda card, _: _empty(nvml.nvmlDeviceResetMemoryLockedClocks(card))),
        (options.applications_clocks, "applications clocks", _set_applications_clocks),
        (options.reset_applications_clocks, "applications clocks", _reset_applications_clocks),
        (options.multi_instance_gpu, "MIG mode", mig_program.set_mode),
    ]
    given = [(value, what, carry_out) for value, what, carry_out in wanted if value]
    for value, what, carry_out in given:
        for card in cards:
            try:
                done = carry_out(card, value)
            except nvml.NVMLError as error:
                status = STATUSES.get(error.value, OTHER)
                raise Refused(f"{_failure(error, what, bus_id(card))}\n{EARLY_END}", status) from None
            if done:
                print(done)
        print("All done.")
    return bool(given)


def _failure(error: Any, what: str, bus: str) -> str:
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return f"The current user does not have permission to change {what} for GPU {bus}."
    if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
        return f"Changing {what} is not supported for GPU {bus}."
    return f"Unable to change {what} for GPU {bus}: {error}"


def _empty(_: None) -> str:
    return ""


def _set_persistence(card: Any, value: str) -> str:
    if value not in ("0", "1"):
        raise Refused(f"ERROR: persistence mode is 0 or 1, not {value}.\n{EARLY_END}", WRONG_USE)
    nvml.nvmlDeviceSetPersistenceMode(card, int(value))
    return f"{'Enabled' if value == '1' else 'Disabled'} persistence mode for GPU {bus_id(card)}."


def _set_power_limit(card: Any, value: str) -> str:
    limit_mw = round(_number(value) * 1000)
    least_mw, most_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)
    before_mw = nvml.nvmlDeviceGetPowerManagementLimit(card)
    if not least_mw <= limit_mw <= most_mw:
        between = f"{least_mw / 1000:.2f} W and {most_mw / 1000:.2f} W for GPU {bus_id(card)}"
        limit = f"Provided power limit {limit_mw / 1000:.2f} W is not a valid power limit"
        raise Refused(f"{limit} which should be between {between}\n{EARLY_END}", WRONG_USE)
    nvml.nvmlDeviceSetPowerManagementLimit(card, limit_mw)
    return f"Power limit for GPU {bus_id(card)} was set to {limit_mw / 1000:.2f} W from {before_mw / 1000:.2f} W."


def _lock_clocks(card: Any, value: str) -> str:
    low_mhz, high_mhz = _range_mhz(value)
    nvml.nvmlDeviceSetGpuLockedClocks(card, low_mhz, high_mhz)
    return f'GPU clocks set to "(gpuClkMin {low_mhz}, gpuClkMax {high_mhz})" for GPU {bus_id(card)}'


def _lock_memory_clocks(card: Any, value: str) -> str:
    low_mhz, high_mhz = _range_mhz(value)
    nvml.nvmlDeviceSetMemoryLockedClocks(card, low_mhz, high_mhz)
    return f'Memory clocks set to "(memClkMin {low_mhz}, memClkMax {high_mhz})" for GPU {bus_id(card)}'


def _set_applications_clocks(card: Any, value: str) -> str:
    words = value.split(",")
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise Refused(f"ERROR: applications clocks are MEMORY,GRAPHICS in MHz, not {value}.\n{EARLY_END}", WRONG_USE)
    memory_mhz, graphics_mhz = int(words[0]), int(words[1])
    if (memory_mhz, graphics_mhz) not in supported_clocks(card):
        pair = f'"(MEM {memory_mhz}, SM {graphics_mhz})"'
        hint = "Run 'nvidia-smi --query-supported-clocks=mem,gr --format=csv' for supported pairs."
        raise Refused(f"Applications clocks {pair} are not supported for GPU {bus_id(card)}. {hint}", WRONG_USE)
    nvml.nvmlDeviceSetApplicationsClocks(card, memory_mhz, graphics_mhz)
    return f'Applications clocks set to "(MEM {memory_mhz}, SM {graphics_mhz})" for GPU {bus_id(card)}'


def _reset_applications_clocks(card: Any, _: str) -> str:
    nvml.nvmlDeviceResetApplicationsClocks(card)
    return f"Applications clocks for GPU {bus_id(card)} are as at the start"


def _range_mhz(value: str) -> tuple[int, int]:
    """``MIN,MAX``, or one clock for both."""
    words = value.split(",")
    if len(words) > 2 or not all(word.isdigit() for word in words):
        raise Refused(f"ERROR: clocks are MIN,MAX in MHz, not {value}.\n{EARLY_END}", WRONG_USE)
    return int(words[0]), int(words[-1])


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Refused(f"ERROR: {value} is no number of watts.\n{EARLY_END}", WRONG_USE) from None


if __name__ == "__main__":
    sys.exit(main())
