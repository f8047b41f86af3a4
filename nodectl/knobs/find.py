"""Finding knobs: all that a node has, or the one of a name."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any

from nodectl.knobs.api import Knob, KnobError
from nodectl.knobs.registry import KINDS
from pmu.findings import Finding, absent
from pmu.layout import Layout
from pmu.ports import Ports


def open_knob(ports: Ports, name: str) -> Knob:
    """The knob of that name, without looking at the rest of the node; ``KnobError`` if it is not there.

    This is all that a restore after a crash needs, so it asks for nothing else.
    """
    for kind in KINDS:
        if match := re.fullmatch(kind.pattern, name):
            return kind.open(ports, match)
    raise KnobError(f"no kind of knob is called {name!r}")


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
    """Every knob of the node that can be used, kind by kind, and a row for ``doctor`` per knob looked for."""
    knobs: list[Knob] = []
    findings: list[Finding] = []
    for kind in KINDS:
        names, why_none = kind.find(ports.files, layout)
        if not names and why_none:
            findings.append(absent(kind.name, "knob", why_none))
        for name in names:
            try:
                knob = open_knob(ports, name)
                knob.read()
            except KnobError as error:
                present = error.status != "vanished"
                findings.append(Finding(name, "knob", present, False, False, error.reason == "lock bit", str(error)))
                continue
            finding = kind.look(ports.files, knob)
            findings.append(finding)
            if finding.writable:
                knobs.append(knob)
    return knobs, findings
