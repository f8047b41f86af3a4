"""What a cluster is made of and its power: ``machines/NAME.toml``, or a file of your own.

A machine is groups of equal nodes (``[[nodes]]``), racked or not (``[topology]``). A node is off, idle, or busy at one
of its frequencies; switching on and off takes seconds and joules. A chassis or rack draws watts of its own until
everything in it is off; then it goes off too, and takes the off watts of its nodes (their management controllers)
with it: the *bonus* of grouped switch-off (Glesser, PhD thesis, Grenoble 2016, §4.4).

A job that runs at a lower frequency runs longer by ``slowdown``: 1 at the highest, ``degradation`` at the lowest,
linear between (thesis §4.5), or measured per frequency.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.errors import WrongUseError, without_types
from foundation.digest import sha256_hex
from foundation.shell.errors import nearest
from foundation.shell.plain_text import foreign_text
from foundation.shell.settings import decode_toml, line_of

SHIPPED: Final = Path(__file__).parent / "machines"
MOST_PROCESSORS: Final = 2**31 - 1
MOST_W: Final = 1e9
"""Ours: watts, joules, seconds or slowdowns beyond it are a mistake, as is what is no number."""
MOST_OF_NODE: Final = 1 << 20
"""GPUs, MICs and GB of a node that a job can request."""
UW: Final = 1_000_000
"""Engines count whole microwatts."""


class NodeGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal nodes. Watts are of a whole node; the lists belong together and begin at the highest frequency."""

    count: int
    cores: int
    off_w: float = 0.0
    idle_w: float = 0.0
    frequency_mhz: tuple[int, ...] = ()
    busy_w: tuple[float, ...] = ()  # all cores busy, as accounted
    busy_max_w: tuple[float, ...] = ()  # the same, as planned with; empty: busy_w
    slowdown: tuple[float, ...] = ()  # run time over that at the first frequency; empty: from [degradation]
    boot_s: float = 0.0
    boot_j: float = 0.0
    switch_off_s: float = 0.0
    switch_off_j: float = 0.0
    name: str = ""
    gpus: int = 0
    mics: int = 0
    memory_gb: float = 0.0
    gpu_w: float = 0.0  # one busy GPU, on top of busy_w
    mic_w: float = 0.0
    rest_w: float = 0.0  # live, with configurations: of a busy node, all but its packages
    hosts: tuple[str, ...] = ()  # live: patterns of the nodes' names, such as "gpu*"; empty: all that no group names


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes in order fill a chassis, chassis a rack; 0: there is none."""

    nodes_per_chassis: int = 0
    chassis_w: float = 0.0
    chassis_per_rack: int = 0
    rack_w: float = 0.0


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the ledger of a live partition keeps the budget (``clusterctl state export --machine`` writes it), so that a
    replay keeps its caps as the partition does. Not given: caps are what jobs and idle nodes may draw, from their times
    on."""

    settle_s: float = 0.0  # so long before a lower budget comes it counts: nodes need that to come down
    fixed_w: float = 0.0  # of the budget, for what nobody caps
    reserve_w: float = 0.0  # of the budget, for nodes that may reboot at once
    counts_idle: bool = False  # on nodes, and with configurations: idle nodes draw from the budget, too

    @property
    def aside_w(self) -> float:
        """What of the budget neither jobs nor idle nodes may draw."""
        return self.fixed_w + self.reserve_w


class MachineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is written. ``degradation`` names application classes; the one called ``default`` is used unless
    another is chosen."""

    name: str
    summary: str
    nodes: tuple[NodeGroup, ...]
    topology: Topology = Topology()
    degradation: dict[str, float] = {}
    kept: Kept = Kept()


class Machine(msgspec.Struct, frozen=True):
    """A checked machine. ``node`` is the first group: the one whose watts and frequencies the native engine uses."""

    name: str
    groups: tuple[NodeGroup, ...]
    topology: Topology
    degradation: dict[str, float]
    kept: Kept = Kept()
    sha256: str = ""
    """Of the file that it was read from."""

    @property
    def node(self) -> NodeGroup:
        """The first group of nodes."""
        return self.groups[0]

    @property
    def nodes(self) -> int:
        """Nodes of all groups."""
        return sum(group.count for group in self.groups)

    @property
    def processors(self) -> int:
        """Cores of all nodes: what a job log calls processors."""
        return sum(group.count * group.cores for group in self.groups)

    @property
    def has_watts(self) -> bool:
        """Whether the file has the nodes' watts."""
        return all(group.busy_w for group in self.groups)

    def check_watts(self) -> None:
        """``WrongUseError`` if it has none."""
        if not self.has_watts:
            raise WrongUseError(f"{self.name}: the machine has no watts; give busy_w for every [[nodes]]")

    @property
    def chassis(self) -> int:
        """Chassis, a last one that is not full included."""
        return _groups(self.nodes, self.topology.nodes_per_chassis)

    @property
    def racks(self) -> int:
        """Racks, a last one that is not full included."""
        return _groups(self.chassis, self.topology.chassis_per_rack)

    @property
    def fixed_w(self) -> float:
        """Watts of all chassis and racks themselves."""
        return self.chassis * self.topology.chassis_w + self.racks * self.topology.rack_w

    @property
    def idle_w(self) -> float:
        """The whole machine, on and idle."""
        return self.fixed_w + sum(group.count * group.idle_w for group in self.groups)

    @property
    def full_w(self) -> float:
        """The whole machine, every core busy at the highest frequency, as planned with. ``WrongUseError`` without
        watts."""
        self.check_watts()
        return self.fixed_w + sum(group.count * (group.busy_max_w or group.busy_w)[0] for group in self.groups)

    def slowdowns(self, application: str | None = None) -> tuple[float, ...]:
        """Run time at each frequency over that at the highest; ``WrongUseError`` for an unknown application class."""
        node = self.node
        if application is None and node.slowdown:
            return node.slowdown
        if application is not None and application not in self.degradation:
            raise WrongUseError(
                f"{self.name} has no application class {application!r}{nearest(application, self.degradation)}"
            )
        lowest = self.degradation.get(application or "default", 1.0)
        if len(node.frequency_mhz) < 2:
            return (1.0,) * len(node.frequency_mhz)
        high, low = node.frequency_mhz[0], node.frequency_mhz[-1]
        return tuple(1 + (lowest - 1) * (high - mhz) / (high - low) for mhz in node.frequency_mhz)


def load_machine(text: str) -> Machine:
    """``curie``, ``curie:nodes=90``, ``nodes=64,cores=16`` or a path; ``WrongUseError`` in one line otherwise.

    ``nodes`` and ``cores`` change the first group of the file; without a name they change the ``generic`` machine.
    """
    name, _, rest = text.partition(":")
    if "=" in name:
        name, rest = "generic", text
    shipped = {path.stem: path for path in SHIPPED.glob("*.toml")}
    path = shipped.get(name, Path(name))
    if name not in shipped and not path.suffix:
        raise WrongUseError(f"--machine {text}: no machine is called {name!r}{nearest(name, shipped)}; or give a file")
    return build(*read(path), _overrides(text, rest), str(path))


def shipped_names() -> list[str]:
    """The machines that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read(path: Path) -> tuple[MachineFile, str]:
    """Read a machine file, and its SHA-256; the ``WrongUseError`` names file, line and key."""
    try:
        raw = path.read_bytes()
        text = foreign_text(raw)
    except OSError as error:
        raise WrongUseError(f"{path}: cannot read the machine: {error.strerror}") from None
    try:
        found = decode_toml(text, MachineFile)
    except msgspec.ValidationError as error:
        raise WrongUseError(_explained(path, text, str(error))) from None
    except msgspec.DecodeError as error:
        raise WrongUseError(f"{path}: {error}") from None
    for key, problem in _problems(found):
        raise WrongUseError(f"{path}:{line_of(text, tuple(key.split('.')))}: {key}: {problem}")
    return found, sha256_hex(raw)


def build(found: MachineFile, file_sha256: str, changes: dict[str, int], where: str) -> Machine:
    """The machine of a checked file, its first group changed."""
    first = msgspec.structs.replace(found.nodes[0], **changes)
    machine = Machine(found.name, (first, *found.nodes[1:]), found.topology, found.degradation, found.kept, file_sha256)
    if machine.processors > MOST_PROCESSORS:
        raise WrongUseError(f"{where}: {machine.processors} cores are more than {MOST_PROCESSORS}")
    return machine


def _groups(members: int, size: int) -> int:
    return -(-members // size) if size else 0


def _overrides(text: str, rest: str) -> dict[str, int]:
    keys = {"nodes": "count", "cores": "cores"}
    found: dict[str, int] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in keys:
            raise WrongUseError(f"--machine {text}: {part!r} is neither nodes=NUMBER nor cores=NUMBER")
        if not value.isdecimal() or not 0 < int(value) <= MOST_PROCESSORS:
            raise WrongUseError(f"--machine {text}: {key} cannot be {value!r}: give a number from 1")
        found[keys[key]] = int(value)
    return found


def _explained(path: Path, text: str, message: str) -> str:
    what, _, where = message.partition(" - at `")
    steps = re.findall(r"[A-Za-z_]\w*", where)
    if unknown := re.search(r"unknown field `(.+)`", what):
        known = _fields(steps)
        return f"{path}:{line_of(text, (*steps, unknown[1]))}: unknown key {unknown[1]!r}{nearest(unknown[1], known)}"
    what = without_types(what)
    return f"{path}:{line_of(text, tuple(steps))}: {'.'.join(steps) or 'the file'}: {what[:1].lower()}{what[1:]}"


def _fields(steps: list[str]) -> list[str]:
    structs: dict[str, Any] = {"nodes": NodeGroup, "topology": Topology, "kept": Kept}
    return [
        field.name for field in msgspec.structs.fields(structs.get(steps[0], MachineFile) if steps else MachineFile)
    ]


def _problems(found: MachineFile) -> Any:
    """What is out of range, as (key, problem)."""
    if not found.nodes:
        yield "nodes", "at least one group of nodes is needed"
    for group in found.nodes:
        for key, problem in _group_problems(group):
            yield f"nodes.{key}", problem
    for key, value in found.degradation.items():
        if not 1 <= value < MOST_W:
            yield f"degradation.{key}", "must be 1 or more"
    for key in ("settle_s", "fixed_w", "reserve_w"):
        if not 0 <= getattr(found.kept, key) < MOST_W:
            yield f"kept.{key}", "must be 0 or more"
    for key in ("chassis_w", "rack_w"):
        if not 0 <= getattr(found.topology, key) < MOST_W:
            yield f"topology.{key}", "must be 0 or more"
    for key in ("nodes_per_chassis", "chassis_per_rack"):
        if not 0 <= getattr(found.topology, key) <= MOST_PROCESSORS:
            yield f"topology.{key}", f"must be 0 to {MOST_PROCESSORS}"
    if found.topology.chassis_per_rack and not found.topology.nodes_per_chassis:
        yield "topology.chassis_per_rack", "needs nodes_per_chassis"


def _group_problems(group: NodeGroup) -> Iterator[tuple[str, str]]:
    """What is out of range in one group of nodes, as (key, problem)."""
    for key in ("count", "cores"):
        if getattr(group, key) < 1:
            yield key, "must be 1 or more"
    yield from _level_problems(group)
    keys = ("off_w", "boot_s", "boot_j", "switch_off_s", "switch_off_j", "idle_w", "gpu_w", "mic_w", "rest_w")
    for key in keys:
        if not 0 <= getattr(group, key) < MOST_W:
            yield key, "must be 0 or more"
    for key in ("gpus", "mics", "memory_gb"):
        if not 0 <= getattr(group, key) <= MOST_OF_NODE:
            yield key, f"must be 0 to {MOST_OF_NODE}"
    if group.off_w > group.idle_w:
        yield "off_w", f"is above idle_w = {group.idle_w:g}"


def _level_problems(group: NodeGroup) -> Iterator[tuple[str, str]]:
    """The columns by frequency: as many values as frequencies, which fall; then watts fall and slowdowns rise."""
    levels, most_w = len(group.frequency_mhz), group.busy_max_w or group.busy_w
    for key in ("busy_w", "busy_max_w", "slowdown"):
        values = getattr(group, key)
        if (values or key == "busy_w") and len(values) != levels:
            yield key, f"has {len(values)} values for the {levels} of frequency_mhz"
        if not all(0 <= value < MOST_W for value in values):
            yield key, "must be numbers of 0 or more"
    if list(group.frequency_mhz) != sorted(set(group.frequency_mhz), reverse=True):
        yield "frequency_mhz", "must begin at the highest and fall"
    if list(group.slowdown) != sorted(group.slowdown) or (group.slowdown and group.slowdown[0] != 1):
        yield "slowdown", "must begin with 1 and never fall"
    if any(watts < group.idle_w for watts in group.busy_w + group.busy_max_w):
        yield "busy_w", f"is below idle_w = {group.idle_w:g}"
    if list(most_w) != sorted(most_w, reverse=True):
        yield "busy_w", "must fall with the frequency"
