"""URLs of controllers: ``scmi+inproc:``, ``scmi+shm:/path``, ``scmi+serial:///dev/ttyUSB0?baud=921600``.

After ``scmi+serial:`` comes a device (``///dev/ttyUSB0``) or any URL of pyserial (``socket://host:port``, ``loop://``).
Of its options only ``baud`` and ``slowdown`` are ours.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from firmware_bridge.errors import LinkError, RequestError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.serial_line import DEFAULT_BAUD, open_serial
from firmware_bridge.scmi.transports.shared_words import SharedWords
from firmware_bridge.scmi.transports.shm import open_shared_memory
from firmware_bridge.scmi.transports.transport import Transport

SCHEMES: Final = ("scmi+inproc", "scmi+shm", "scmi+serial")
_MOST: Final = {"baud": (1 << 31) - 1, "slowdown": 1_000_000}
_KIND: Final = {"baud": "a number of bits per second", "slowdown": "a factor from 1 to 1000000"}
_EXAMPLE: Final = "scmi+serial:///dev/ttyUSB0?baud=921600, scmi+shm:/run/scmi.sock or scmi+inproc:"


def open_client(url: str) -> Client:
    """A client over the transport that the URL names.

    Raises ``RequestError`` for an invalid URL, a ``LinkError`` if no usable controller is at its other end.
    """
    return Client(open_transport(url))


def open_transport(url: str) -> Transport:
    """The transport that the URL names."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        near = difflib.get_close_matches(scheme, SCHEMES, 1)
        raise RequestError(f"{url!r} is not an SCMI URL{f' (nearest: {near[0]}:)' if near else ''}, e.g. {_EXAMPLE}")
    if scheme == "scmi+serial":
        return _serial_line(rest, url)
    if scheme == "scmi+shm":
        path = rest.removeprefix("//")
        if not path:
            raise RequestError(f"{url!r}: the path of the controller's socket is missing, e.g. scmi+shm:/run/scmi.sock")
        return open_shared_memory(path, url)
    if rest:
        raise RequestError(f"{url!r}: scmi+inproc: takes nothing after the colon")
    host = _host_platform(url)
    return InProcess(host, shared_words=SharedWords(host.fast_channel(0).data, host.fast_channel_address(0)))


def _serial_line(rest: str, url: str) -> Transport:
    """The line of a device or of a URL of pyserial."""
    place, _, query = rest.partition("?")
    place = place.removeprefix("//") if place.startswith("//") else place
    if not place:
        raise RequestError(f"{url!r}: the device is missing, e.g. scmi+serial:///dev/ttyUSB0?baud=921600")
    others: list[tuple[str, str]] = []
    ours = {"baud": DEFAULT_BAUD, "slowdown": 1}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in ours:
            others.append((key, value))
        elif value.isdecimal() and 0 < int(value) <= _MOST[key]:
            ours[key] = int(value)
        else:
            raise RequestError(f"{url!r}: {key} {value!r} is not {_KIND[key]}")
    if others and "://" not in place:
        raise RequestError(f"{url!r}: a device has no option {others[0][0]!r}; it has baud and slowdown")
    if place.startswith(("socket://", "rfc2217://")) and not _has_port(place):
        raise RequestError(f"{url!r}: the port is missing, e.g. scmi+serial:socket://host:4000")
    device = f"{place}?{urlencode(others)}" if others else place
    return open_serial(device, ours["baud"], url, ours["slowdown"])


def _has_port(place: str) -> bool:
    try:
        return urlsplit(place).port is not None
    except ValueError:
        return False


def _host_platform(url: str) -> Any:
    """The firmware as a library in this process."""
    try:
        host = importlib.import_module("firmware_bridge.controlpulp.host")
    except ImportError as error:
        raise LinkError(f"{url}: the firmware's host board is not built here ({error}); run `make setup`") from None
    return host.HostController()
