"""Check what a node declares to its cluster agent against its hardware: the ledger believes every declaration.

Each problem is one line: what is declared, what contradicts it, and what to do. What the hardware does not report is
not checked: few packages report how low they can be capped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import find
from nodectl.config import Config, Scmi
from nodectl.controller.scmi_knobs import lease_left
from nodectl.controller.scmi_link import patient_client
from nodectl.decide.node_cap import CAP_ROW
from pmu.findings import read_number, read_or_none
from pmu.instruments import pci_gpus
from pmu.instruments.rapl import POWERCAP
from pmu.layout import Layout
from pmu.ports import Files

WATCHDOGS = "/sys/class/watchdog"
KEEPS_IT = "declare sticky, since such a controller keeps the cap"
TRY_AGAIN = "try again when it answers and no agent of this node is connected to it"


@dataclass(frozen=True, slots=True)
class CapController:
    """The controller that enforces the packages' cap.

    ``why``: why it does not end leases by itself; empty if it does. ``left_s``: time left of the present lease (0: it
    is over), ``lapsed_w``: the cap after it (0: no lease is set). ``least_w`` to ``most_w``: the range of its caps; 0
    and inf where it is not known. ``fix``: what to do about ``why``.
    """

    why: str = ""
    left_s: float = 0.0
    lapsed_w: float = 0.0
    least_w: float = 0.0
    most_w: float = math.inf
    fix: str = "declare os or sticky"


def cap_controller(settings: Scmi) -> CapController:
    """Connect to the controller of the settings and read what it reports; never raises."""
    if not settings.url or CAP_ROW not in settings.knobs:
        return CapController(f"no controller enforces the cap ([scmi] knobs: {CAP_ROW})")
    try:
        client = patient_client(settings.url)
        try:
            return read_controller(client, settings.knobs[CAP_ROW])
        finally:
            client.close()
    except ScmiError as error:
        return CapController(f"the controller cannot be reached: {error}", fix=TRY_AGAIN)


def read_controller(client: Client, domain: str) -> CapController:
    """What the controller reports of this domain, a name or a number, and of our lease. ``ScmiError`` when it does not
    answer."""
    controller = Controller(client)
    found = find(controller.cap_domains, domain, "power domain")
    least_w, most_w = 0.0, math.inf
    if found.unit in ("uW", "mW"):
        least_w, most_w = found.watts(found.min_cap), found.watts(found.max_cap)
    lease = lease_left(controller, found)
    if isinstance(lease, str):
        return CapController(lease, least_w=least_w, most_w=most_w, fix=KEEPS_IT)
    return CapController("", lease.left_ms / 1000, lease.cap_mw / 1000, least_w, most_w)


def proof(config: Config, controller: CapController) -> str:
    """Why class ``hw`` is true, as the controller reports; empty where it is not declared, or not proved."""
    if not config.cluster.url or config.cluster.lease_class != "hw" or controller.why:
        return ""
    if not controller.lapsed_w:
        return "lease_class hw: yes: the controller ends leases by itself; none is set now, the first grant sets one"
    until = f"{controller.left_s:.1f} s are left of its lease," if controller.left_s else "its lease is over,"
    return f"lease_class hw: yes: the controller ends leases by itself; {until} then {controller.lapsed_w:g} W at most"


def problems(config: Config, layout: Layout, files: Files, controller: CapController) -> list[str]:
    """What is wrong with the declarations, one line each; none for a node of no cluster."""
    if not config.cluster.url:
        return []
    found = _cards(config, layout, files), _watts(config, layout, files, controller)
    return [line for lines in (*found, _lease(config, layout, files, controller)) for line in lines]


def _cards(config: Config, layout: Layout, files: Files) -> Iterator[str]:
    """Cards that draw power which nobody reads."""
    found = pci_gpus.look(files).cards
    for card in pci_gpus.unseen(found, [gpu.pci for gpu in layout.gpus], config.gpu.absent):
        yield f"GPU {card}: {pci_gpus.why_unseen(files, card)}; until then this node counts with its tdp_w"


def _watts(config: Config, layout: Layout, files: Files, controller: CapController) -> Iterator[str]:
    cluster, rest_w = config.cluster, config.caps.rest_w
    if not rest_w:
        yield (
            "caps.rest_w is 0: the node is above its cap by what board, fans and memory draw:"
            " set it as docs/configuration.md says under Rest power"
        )
    gpus_least_w = sum(gpu.min_power_limit_w for gpu in layout.gpus)
    packages_least_w = controller.least_w or _of_packages(layout, files, "min")
    least_w = packages_least_w + gpus_least_w + rest_w
    parts = f"packages {packages_least_w:g}, GPUs {gpus_least_w:g}, caps.rest_w {rest_w:g}"
    for key, watts in (("mop_w", cluster.mop_w), ("safe_w", cluster.safe_w)):
        if watts < least_w:
            yield (
                f"{key} {watts:g} W is less than the node can be capped to, {least_w:g} W ({parts}):"
                f" set {key} to {math.ceil(least_w)} or more"
            )
    stated_w = _of_packages(layout, files, "max")
    packages_most_w = controller.most_w if math.isfinite(controller.most_w) else stated_w
    gpus_most_w = sum(gpu.max_power_limit_w for gpu in layout.gpus)
    most_w = packages_most_w + gpus_most_w + rest_w
    if cluster.tdp_w < most_w:
        yield (
            f"tdp_w {cluster.tdp_w:g} W is less than the node's knobs allow, {most_w:g} W"
            f" (packages {packages_most_w:g}, GPUs {gpus_most_w:g}, caps.rest_w {rest_w:g}):"
            f" set tdp_w to {math.ceil(most_w)} or more"
        )
    if cluster.boot_w < rest_w:
        yield (
            f"boot_w {cluster.boot_w:g} W is less than caps.rest_w ({rest_w:g} W), which the node always draws:"
            " set boot_w to the most that was measured from power-on until the agent has started"
        )


def _of_packages(layout: Layout, files: Files, which: str) -> float:
    """The sum over packages of the lowest ("min") or highest ("max") long-term limit, watts; 0 if a package does not
    report it."""
    packages = [zone for zone in layout.zones if zone.kind == "package"]
    limits_uw = [read_number(files, f"{POWERCAP}/{zone.path}/constraint_0_{which}_power_uw") or 0 for zone in packages]
    return sum(limits_uw) / 1e6 if all(limits_uw) else 0.0


def hw_doubt(config: Config, layout: Layout, controller: CapController) -> str:
    """Why class ``hw`` is not true, and what to do; empty where it is not declared, or nothing contradicts it."""
    cluster = config.cluster
    if cluster.lease_class != "hw":
        return ""
    if controller.why:
        return f"lease_class hw, but {controller.why}: {controller.fix}"
    if layout.gpus:
        return "lease_class hw, but no controller ends the limits of the GPUs: declare os or sticky"
    if controller.lapsed_w + config.caps.rest_w > cluster.safe_w:
        return (
            f"lease_class hw, but the controller falls to {controller.lapsed_w:g} W without a lease, and with"
            f" caps.rest_w ({config.caps.rest_w:g} W) that is not within safe_w ({cluster.safe_w:g} W):"
            " run nodectl once with these settings, which sets another"
        )
    return ""


def _lease(config: Config, layout: Layout, files: Files, controller: CapController) -> Iterator[str]:
    cluster = config.cluster
    if doubt := hw_doubt(config, layout, controller):
        yield doubt
    if cluster.lease_class == "os":
        if CAP_ROW in config.scmi.knobs:
            yield (
                "lease_class os, but the controller keeps its cap when the watchdog resets this machine: declare"
                f" {'sticky' if controller.why else 'hw, since it ends leases by itself'}"
            )
        yield from _watchdog(cluster.watchdog_s, files)


def _watchdog(watchdog_s: float, files: Files) -> Iterator[str]:
    """Class ``os``: what resets a hung kernel, and when. Not every kernel reports a watchdog's state."""
    try:
        devices = sorted(files.listdir(WATCHDOGS))
    except OSError:
        devices = []
    if not devices:
        yield (
            "lease_class os, but nothing resets a kernel that hangs: no hardware watchdog in /sys/class/watchdog: load"
            " its driver and set RuntimeWatchdogSec in systemd's system.conf, or declare sticky"
        )
        return
    states = [read_or_none(files, f"{WATCHDOGS}/{device}/state") for device in devices]
    if all(state is not None and state.strip() == "inactive" for state in states):
        yield (
            f"lease_class os, but nobody has armed a watchdog ({', '.join(devices)}: inactive):"
            " set RuntimeWatchdogSec in systemd's system.conf, or declare sticky"
        )
        return
    armed = [one for one, state in zip(devices, states, strict=True) if state is None or state.strip() == "active"]
    timeouts_s = [read_number(files, f"{WATCHDOGS}/{device}/timeout") for device in armed]
    known_s = [one for one in timeouts_s if one is not None]
    if known_s and min(known_s) > watchdog_s:
        yield (
            f"watchdog_s {watchdog_s:g} s is less than the watchdog's time-out, {min(known_s)} s: set watchdog_s to"
            f" {min(known_s)} or more, or RuntimeWatchdogSec to less"
        )
