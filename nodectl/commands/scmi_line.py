"""``nodectl scmi ping``, ``watch`` and ``trace``: the messages on the line."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from typing import Final

import click

from firmware_bridge.errors import LinkError, NoAnswerError, ScmiError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.messages.codec import decode
from firmware_bridge.scmi.messages.header import Protocol, Sender
from firmware_bridge.scmi.messages.message import Body, Command, Message
from firmware_bridge.scmi.messages.words import as_json, describe, describe_bytes
from firmware_bridge.scmi.protocols.common import ProtocolVersion
from firmware_bridge.scmi.protocols.performance import NotifyLevel, NotifyLimits
from firmware_bridge.scmi.protocols.power_capping import CapNotify, MeasurementsNotify
from firmware_bridge.scmi.transports.trace import Passed, Traced
from firmware_bridge.scmi.transports.url import open_client, open_transport
from foundation.shell.plain_text import echo, json_text
from nodectl.commands.scmi_targets import UNITS_S, in_units, read, targets_of

EVENT_WAIT_S: Final = 0.2
"""Ours: how long to wait for an event before checking whether it is time to end."""

UNSUBSCRIBE_S: Final = 1.5
"""Ours: a command whose controller no longer answers ends within two seconds."""

UNSUBSCRIBE_TRIES: Final = 5


@click.command()
@click.argument("url", metavar="URL")
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="Messages to send.")
@click.option("--json", "as_json_text", is_flag=True, help="Print JSON.")
def ping(url: str, count: int, as_json_text: bool) -> int:
    """Measure round trips of the shortest message. Exit status 1 if one is lost."""
    client = open_client(url)
    took_us: list[float] = []
    try:
        client.request(ProtocolVersion(Protocol.BASE))  # a device without SCMI is an error, not a loss
        once = Client(client.transport, tries=1)
        for _ in range(count):
            begin_s = time.perf_counter()
            try:
                once.request(ProtocolVersion(Protocol.BASE))
            except NoAnswerError:
                continue
            took_us.append((time.perf_counter() - begin_s) * 1e6)
    finally:
        client.close()
    lost = count - len(took_us)
    figures = _percentiles(took_us) if took_us else {}
    if as_json_text:
        echo(json_text({"sent": count, "lost": lost, "round_trip_us": figures}))
    else:
        text = ", ".join(f"{name} {value:.0f} us" for name, value in figures.items())
        echo(f"{count} sent, {lost} lost{': ' + text if text else ''}")
    return 1 if lost else 0


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    return {"min": ordered[0], "median": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


@click.command()
@click.argument("url", metavar="URL")
@click.option("--for", "duration", metavar="TIME", help="End after this time, e.g. 10s; default: on Ctrl-C.")
@click.option("--count", type=click.IntRange(1), help="End after so many notifications.")
@click.option("--power", is_flag=True, help="Report measured power too.")
@click.option("--json", "as_json_text", is_flag=True, help="Print one JSON object per line.")
def watch(url: str, duration: str | None, count: int | None, power: bool, as_json_text: bool) -> None:
    """Print changes of caps, limits and levels as the controller reports them, with the agent that made them."""
    duration_s = in_units(duration, UNITS_S, "a time such as 10s") if duration is not None else math.inf
    client = open_client(url)
    try:
        controller = Controller(client)
        clock = client.transport.clock
        for request in _subscriptions(controller, 1, power=power):
            client.request(request)
        begin_s, seen = clock.now_s(), 0
        try:
            while (left_s := begin_s + duration_s - clock.now_s()) > 0 and (count is None or seen < count):
                for message in client.wait_for_events(min(left_s, EVENT_WAIT_S)):
                    seen += 1
                    echo(_event_line(message, clock.now_s() - begin_s, client, as_json_text))
        finally:
            _unsubscribe(controller, power=power)
    finally:
        client.close()


def _unsubscribe(controller: Controller, *, power: bool) -> None:
    """What a slow controller does not answer is tried again, for ``UNSUBSCRIBE_S``; a link that has gone has none."""
    client = controller.client
    deadline_s = client.transport.clock.now_s() + UNSUBSCRIBE_S
    left = list(_subscriptions(controller, 0, power=power))
    for _ in range(UNSUBSCRIBE_TRIES):
        failed = []
        for request in left:
            if client.transport.clock.now_s() > deadline_s:
                return
            try:
                client.request(request)
            except LinkError:
                failed.append(request)
        left = failed


def _subscriptions(controller: Controller, enable: int, *, power: bool) -> Iterator[Command[Body]]:
    """What enables every notification that the domains offer (``enable`` 1), or disables it (0)."""
    for domain in controller.cap_domains:
        if domain.notifies_caps:
            yield CapNotify(domain.number, enable)
        if power and domain.notifies_measurements:
            yield MeasurementsNotify(domain.number, enable, 0, 0)  # no bounds: every update
    for speed in controller.speed_domains:
        if speed.notifies_limits:
            yield NotifyLimits(speed.number, enable)
        if speed.notifies_level:
            yield NotifyLevel(speed.number, enable)


def _event_line(message: Message, at_s: float, client: Client, as_json_text: bool) -> str:
    if as_json_text:
        return json_text({"at_s": at_s, **as_json(message, client.dialect)})
    return f"{at_s:10.6f}  {describe(message, client.dialect)}"


@click.command()
@click.argument("url", metavar="URL")
@click.argument("what", nargs=-1)
@click.option("--json", "as_json_text", is_flag=True, help="Print one JSON object per line.")
def trace(url: str, what: tuple[str, ...], as_json_text: bool) -> None:
    """Discover a controller, read WHAT (as in `nodectl scmi get`), and print every message both ways."""
    transport = open_transport(url)
    begin_s = transport.clock.now_s()
    shown: list[Client] = []

    def show(passed: Passed) -> None:
        echo(_passed_line(passed, begin_s, shown[0], as_json_text))

    client = Client(Traced(transport, show))
    shown.append(client)
    try:
        controller = Controller(client)
        for target in targets_of(controller, what):
            read(controller, target)
    finally:
        client.close()


def _passed_line(passed: Passed, begin_s: float, client: Client, as_json_text: bool) -> str:
    at_s = passed.at_s - begin_s
    if not as_json_text:
        arrow = ">" if passed.sender is Sender.AGENT else "<"
        return f"{at_s:10.6f} {arrow} {passed.data.hex()}  {describe_bytes(passed.data, passed.sender, client.dialect)}"
    line = {"at_s": at_s, "from": passed.sender.value, "hex": passed.data.hex()}
    try:
        message = as_json(decode(passed.data, passed.sender, client.dialect), client.dialect)
    except ScmiError as error:
        message = {"problem": str(error)}
    return json_text({**line, **message})
