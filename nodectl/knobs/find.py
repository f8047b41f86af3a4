"""Finding knobs: all that a node has, or the one of a name."""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import Any

from nodectl.knobs.api import Knob, KnobError
from nodectl.knobs.clock_limit import ClockLimit
from nodectl.knobs.gpu_limits import BoardLimit, ClockLock
from nodectl.knobs.package_power_limit import TERMS, PackageLimit, package_limit
from pmu.findings import Finding
from pmu.layout import Layout
from pmu.ports import Ports

_NAME = re.compile(
    r"cpu/policy(?P<policy>\d+)/max_khz|gpu/(?P<gpu>\d+)/(?P<what>sm_clock_mhz|power_limit_mw)"
    r"|rapl/(?P<package>[^/]+)/(?P<term>long_term|short_term)_uw"
)


def open_knob(ports: Ports, name: str) -> Knob:
    """The knob of that name, without looking at the rest of the node; ``KnobError`` if it is not there.

    This is all that a restore after a crash needs, so it asks for nothing else.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise KnobError(f"no kind of knob is called {name!r}")
    if parts["policy"]:
        limit = ClockLimit(ports.files, int(parts["policy"]))
        limit.read()
        return limit
    if parts["package"]:
        return package_limit(ports.files, parts["package"], parts["term"])
    if ports.nvml is None:
        raise KnobError(f"{name}: {ports.nvml_why}", "vanished")
    try:
        ports.nvml.nvmlInit()  # counted by the library, so one more does no harm
    except ports.nvml.NVMLError as error:
        raise KnobError(f"{name}: {error}", "vanished") from error
    kind = ClockLock if parts["what"] == "sm_clock_mhz" else BoardLimit
    return kind(ports.nvml, int(parts["gpu"]))


class KnobFinder:
    """Gives the knob of a name, also of one behind an SCMI controller. It connects to each controller once, since each
    connection is an SCMI agent of its own. A context manager: it closes the connections at its end."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._controllers: dict[str, Any] = {}

    def __call__(self, name: str) -> Knob:
        """``KnobError`` when it is not there."""
        if "#" not in name:
            return open_knob(self._ports, name)
        from firmware_bridge.errors import ScmiError  # nodes without a controller need none of it
        from firmware_bridge.scmi.controller import Controller
        from firmware_bridge.scmi.transports.url import open_client
        from nodectl.controller.scmi_knobs import Direct, as_knob_error, scmi_knob, url_of

        url = url_of(name)
        if not url:
            raise KnobError(f"no kind of knob is called {name!r}")
        if url not in self._controllers:
            try:
                client = open_client(url)
                try:
                    self._controllers[url] = Controller(client)
                except BaseException:
                    client.close()
                    raise
            except ScmiError as error:
                raise as_knob_error(error) from error
        return scmi_knob(Direct(self._controllers[url]), name)

    def __enter__(self) -> KnobFinder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for controller in self._controllers.values():
            controller.close()


def find_knobs(ports: Ports, layout: Layout) -> tuple[list[Knob], list[Finding]]:
    """Every knob of the node that can be used, in the layout's order, and a row for ``doctor`` per knob looked for."""
    names = [f"cpu/policy{domain.policy}/max_khz" for domain in layout.domains]
    names += [f"gpu/{gpu.index}/{what}" for gpu in layout.gpus for what in ("sm_clock_mhz", "power_limit_mw")]
    packages = dict.fromkeys(zone.name for zone in layout.zones if zone.kind == "package")
    names += [f"rapl/{package}/{term}_uw" for package in packages for term in TERMS]
    knobs: list[Knob] = []
    findings: list[Finding] = []
    for name in names:
        try:
            knob = open_knob(ports, name)
            knob.read()
        except KnobError as error:
            present = error.status != "vanished"
            findings.append(Finding(name, "knob", present, False, False, error.reason == "lock bit", str(error)))
            continue
        finding = _look(ports, knob)
        findings.append(finding)
        if finding.writable:
            knobs.append(knob)
    return knobs, findings


def _look(ports: Ports, knob: Knob) -> Finding:
    """The row of ``doctor`` for a knob that can be read. Whether a RAPL limit is locked shows at the first write."""
    if isinstance(knob, ClockLock | BoardLimit):
        remarks = ["NVML cannot say whether clocks are locked: taken as unlocked, restored by unlocking"]
        remarks = remarks if isinstance(knob, ClockLock) else []
        if os.geteuid() != 0:
            remarks.append("the driver lets only root set it")
        return Finding(knob.name, "knob", True, knob.read_back() is not None, True, False, "; ".join(remarks))
    assert isinstance(knob, ClockLimit | PackageLimit)
    if not ports.files.writable(knob.path):
        return Finding(
            knob.name, "knob", True, True, False, False, f"{knob.path} is not writable; the agent needs root"
        )
    if not isinstance(knob, PackageLimit):
        return Finding(knob.name, "knob", True, True, True)
    if knob.is_off():
        why = "limits of this zone are switched off, or locked by the firmware until the next boot"
        return Finding(knob.name, "knob", True, True, False, True, why)
    twin_uw = knob.twin_limit_uw()
    why = "" if twin_uw is None else f"intel-rapl-mmio has {twin_uw} uW; the lower of both is in force"
    return Finding(knob.name, "knob", True, True, True, False, why)
