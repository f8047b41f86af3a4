"""What every request of ``nvidia-smi`` needs: options, the cards that it is about, and how it is refused."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

import pynvml as nvml

WRONG_USE, NOT_FOUND, OTHER = 2, 6, 255

STATUSES = {
    nvml.NVML_ERROR_INVALID_ARGUMENT: WRONG_USE,
    nvml.NVML_ERROR_NOT_SUPPORTED: 3,
    nvml.NVML_ERROR_NO_PERMISSION: 4,
    nvml.NVML_ERROR_NOT_FOUND: NOT_FOUND,
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: 9,
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: 12,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: 13,
    nvml.NVML_ERROR_GPU_IS_LOST: 15,
}

EARLY_END = "Terminating early due to previous errors."
SEE_HELP = "Please run 'nvidia-smi -h' for help."


class Refused(Exception):  # noqa: N818 # it carries an exit status, also of a request that is right
    """Ends the program: the message, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """One that ends with a line as the driver's program has it."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise Refused(f"ERROR: {message}. {SEE_HELP}\n", WRONG_USE)


def chosen_cards(ids: str | None) -> list[Any]:
    """The cards of ``-i``: numbers, UUIDs, serial numbers or bus addresses with commas; None: all."""
    if ids is None:
        cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    else:
        cards = [_card_of(word.strip()) for word in ids.split(",")]
    if not cards:
        raise Refused("No devices were found", NOT_FOUND)
    return cards


def _card_of(name: str) -> Any:
    ways: list[Callable[[str], Any]] = [nvml.nvmlDeviceGetHandleByUUID, nvml.nvmlDeviceGetHandleByPciBusId]
    if name.isdigit():
        ways = [lambda text: nvml.nvmlDeviceGetHandleByIndex(int(text)), nvml.nvmlDeviceGetHandleBySerial]
    for way in ways:
        try:
            return way(name)
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound):
            continue
    raise Refused("No devices were found", NOT_FOUND)
