"""``nodectl scmi``: talk to an on-chip controller over SCMI, by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from firmware_bridge.errors import MessageError, RequestError, ScmiError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import find
from firmware_bridge.scmi.messages.codec import LATEST, SPOKEN, decode
from firmware_bridge.scmi.messages.header import MessageType, Protocol, Sender, protocol_name, unpack_header
from firmware_bridge.scmi.messages.words import as_json, describe
from firmware_bridge.scmi.transports.url import open_client
from foundation.shell.errors import NodectlError, UsageError, nearest
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render
from nodectl.commands import scmi_line
from nodectl.commands.scmi_targets import UNITS_W, assign, in_units, read, targets_of

URL: Final = click.argument("url", metavar="URL")
JSON: Final = click.option("--json", "as_json_text", is_flag=True, help="Print JSON.")
FAST: Final = click.option(
    "--fast", is_flag=True, help="Through FastChannels where the controller offers them; otherwise by message."
)


class _Conversation(click.Group):
    """A group whose commands raise errors of the bridge. A ``RequestError`` counts as wrong use."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; every error of the bridge becomes an error of the command line."""
        try:
            return super().invoke(ctx)
        except RequestError as error:
            raise UsageError(str(error)) from None
        except ScmiError as error:
            raise NodectlError(str(error)) from None


@click.group(cls=_Conversation)
def scmi() -> None:
    """Talk to an on-chip controller: scmi+serial:///dev/ttyUSB0?baud=921600, scmi+shm:/path or scmi+inproc: (the
    firmware in this process)."""


for _command in (scmi_line.ping, scmi_line.watch, scmi_line.trace):
    scmi.add_command(_command)


@contextlib.contextmanager
def controller_at(url: str) -> Iterator[Controller]:
    """Connect to a controller and discover it; close the connection at the end."""
    client = open_client(url)
    try:
        yield Controller(client)
    finally:
        client.close()


def how(is_fast_requested: bool, is_fast: bool) -> str:
    """How a value was sent where ``--fast`` was given, for the end of a line."""
    return f" ({'through a FastChannel' if is_fast else 'by message'})" if is_fast_requested else ""


def echo_json(value: Any) -> None:
    """Print as indented JSON."""
    echo_block(json_text(value, indent=2))


# ---- a message ----


@scmi.command("decode")
@click.argument("words", metavar="HEX", nargs=-1, required=True)
@click.option("--from", "sender", type=click.Choice(["agent", "platform"]), help="Who sent it; default: try both.")
@click.option("--speak", "spoken", multiple=True, metavar="PROTOCOL=VERSION", help="E.g. performance=0x30000.")
@JSON
def decode_message(words: tuple[str, ...], sender: str | None, spoken: tuple[str, ...], as_json_text: bool) -> None:
    """Print what a message means.

    HEX is bytes as on the wire, or little-endian words each with 0x before it: `05 60 00 00 ...` or `0x6005 0x1 0x0
    0x186a0`. A command and its response have the same header, so both readings are given where both make sense.
    """
    data = _bytes_of(words)
    dialect = LATEST
    for one in spoken:
        dialect = dialect.with_version(*_protocol_version(one))
    senders = [Sender(sender)] if sender else _possible_senders(data)
    messages, problems = [], []
    for who in senders:
        try:
            messages.append(decode(data, who, dialect))
        except MessageError as error:
            problems.append(f"{error} (if from the {who.value})" if len(senders) > 1 else str(error))
    if not messages:
        raise NodectlError("; ".join(problems))
    if as_json_text:
        echo_json([as_json(message, dialect) for message in messages])
        return
    for message in messages:
        echo(describe(message, dialect))


def _bytes_of(words: Sequence[str]) -> bytes:
    if all(word.lower().startswith("0x") and len(word) <= 10 for word in words):
        try:
            return b"".join(int(word, 16).to_bytes(4, "little") for word in words)
        except ValueError:
            raise UsageError(f"{' '.join(words)!r} is not hexadecimal") from None
    text = "".join(words).replace(":", "").removeprefix("0x")
    try:
        return bytes.fromhex(text)
    except ValueError:
        what = "an odd number of digits" if len(text) % 2 else "not hexadecimal"
        raise UsageError(f"{' '.join(words)!r} is {what}; give bytes such as 05600000, or words with 0x") from None


def _possible_senders(data: bytes) -> list[Sender]:
    with contextlib.suppress(MessageError):
        if unpack_header(data).type != MessageType.SYNCHRONOUS:
            return [Sender.PLATFORM]
    return [Sender.AGENT, Sender.PLATFORM]


def _protocol_version(text: str) -> tuple[int, int]:
    name, _, version = text.partition("=")
    names = {protocol.name.lower(): protocol for protocol in Protocol}
    if name not in names:
        raise UsageError(f"--speak {text}: no protocol is called {name!r}{nearest(name, names)}")
    known = {f"{number:#x}": number for number in SPOKEN[names[name]]}
    if version not in known:
        raise UsageError(f"--speak {text}: {name} is spoken in versions {' and '.join(known)}")
    return names[name], known[version]


# ---- a controller ----


@scmi.command()
@URL
@JSON
def discover(url: str, as_json_text: bool) -> None:
    """List what a controller is and has: protocols, agents, domains with their ranges, sensors."""
    with controller_at(url) as controller:
        caps, speeds, sensors = controller.cap_domains, controller.speed_domains, controller.sensors
        identity = controller.identity
    if as_json_text:
        echo_json({"identity": identity, "power": caps, "performance": speeds, "sensors": sensors})
        return
    echo(f"{identity.vendor} {identity.sub_vendor} {identity.implementation:#x}, seen as agent {identity.agent}"
               f" ({identity.agent_name}) of {', '.join(identity.agents[1:])}")  # fmt: skip
    spoken = (
        f"{protocol_name(protocol)} {protocol:#x} {version:#x}" for protocol, version in identity.versions.items()
    )
    echo(f"protocols: {', '.join(spoken)}")
    if caps:
        rows = [(f"{d.number}", d.name, "-" if d.is_root else f"{d.parent}", "yes" if d.can_set_cap else "no",
                 f"{d.min_pai_us} to {d.max_pai_us} us", d.range_in_words()) for d in caps]  # fmt: skip
        echo_block("\n" + render(("power", "name", "parent", "settable", "averaged over", "caps"), rows))
    if speeds:
        rows_of_speed = [
            (f"{d.number}", d.name, "yes" if d.can_set_level else "no", d.range_in_words()) for d in speeds
        ]
        echo_block("\n" + render(("performance", "name", "settable", "levels"), rows_of_speed))
    if sensors:
        echo_block("\n" + render(("sensor", "name", "unit"), [(f"{s.number}", s.name, s.unit) for s in sensors]))


@scmi.command()
@URL
@click.argument("what", nargs=-1)
@JSON
def get(url: str, what: tuple[str, ...], as_json_text: bool) -> int:
    """Read values that are in force and values that are measured.

    WHAT is cap, power, pai, level, limits or sensor, with :NUMBER or :NAME for one of them (`cap:0`, `sensor:temp-1`);
    status is the controller's own state. Without WHAT everything is read. Exit status 1 if something that was named
    could not be read.
    """
    with controller_at(url) as controller:
        values = [read(controller, target) for target in targets_of(controller, what)]
    if as_json_text:
        echo_json(values)
    else:
        echo_block(render(("what", "name", "value"), [(v.what, v.name, v.problem or v.text) for v in values]))
    return 1 if what and any(value.problem for value in values) else 0


@scmi.command("set")
@URL
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True)
@FAST
@JSON
def set_values(url: str, settings: tuple[str, ...], fast: bool, as_json_text: bool) -> int:
    """Set levels, limits and averaging intervals, and read them back.

    SETTING is level:DOMAIN=2400MHz (rounded down to a level), limits:DOMAIN=800MHz..2400MHz or pai:DOMAIN=1ms. For caps
    see `nodectl scmi cap`. Exit status 1 if another value is in force afterwards.
    """
    with controller_at(url) as controller:
        outcomes = [assign(controller, setting, fast=fast) for setting in settings]
    if as_json_text:
        echo_json(outcomes)
    else:
        for outcome in outcomes:
            echo(outcome.text + how(fast, outcome.is_fast))
    return 0 if all(outcome.is_as_asked for outcome in outcomes) else 1


@scmi.command()
@URL
@click.argument("domain")
@click.argument("power", required=False)
@click.option("--disable", is_flag=True, help="Withdraw this agent's cap; power is then bounded by other agents only.")
@FAST
@JSON
def cap(url: str, domain: str, power: str | None, disable: bool, fast: bool, as_json_text: bool) -> int:
    """Cap a power domain's average POWER (`120W`, `90500mW`), or disable its cap.

    The cap is rounded down to the domain's step and read back. A refused cap leaves the previous one in force.
    """
    if (power is None) != disable:
        raise UsageError("give either a cap such as 120W or --disable")
    watts = in_units(power, UNITS_W, "a power such as 120W") if power is not None else None
    if watts == 0:
        raise UsageError("a cap of 0 W would disable capping; use --disable if that is meant")
    with controller_at(url) as controller:
        chosen = find(controller.cap_domains, domain, "power domain")
        if watts is None:
            enforced = controller.disable_cap(chosen)
            requested = sent = None
            is_fast = False
        else:
            outcome = controller.set_cap(chosen, chosen.rounded_down(watts), fast=fast)
            is_fast = outcome.is_fast
            requested, sent, enforced = watts, chosen.watts(outcome.sent), outcome.enforced
    enforced_w = chosen.watts(enforced) if enforced else None
    if as_json_text:
        echo_json({"domain": chosen.number, "name": chosen.name, "asked_w": requested, "sent_w": sent,
                   "enforced_w": enforced_w, "is_fast": is_fast})  # fmt: skip
        return 0
    sent_text = "cap withdrawn" if sent is None else f"{requested:.10g} W requested, {sent:.10g} W sent"
    enforced_text = "capping is disabled" if enforced_w is None else f"{enforced_w:.10g} W enforced"
    echo(f"{chosen.name}: {sent_text}, {enforced_text}{how(fast, is_fast)}")
    return 0
