"""perf_event_open(2) for the watched processes: hardware events count the model, other events are the real kernel's.

The seccomp listener passes each call on before the kernel executes it. By its attributes there are three results: the
real kernel executes it (software events, tracepoints, breakpoints, and sampling of these); it fails with the errno of
the kernel; or the caller gets a descriptor of ours (``csrc/serve_events.c``), which serves all later reads and ioctls
without any filter.

The count of a *hardware event of a task* is a convention: the task ran on this host for some CPU time, and is taken to
do in that time what the emulated node's CPUs (or the given CPU, if the call names one) do in as much busy time. So the
ratios of counts are the model's, and cycles advance at the clock while the task runs, on an idle node too. That time
comes from a real task-clock event on the task, which implements enable_on_exec, inherit and the times exactly as the
kernel does.

Emulated CPUs that the host lacks have no real scheduler. Their cpu-clock and task-clock run while enabled, as on a real
CPU; other software events stay 0. Sampling by software events is the real kernel's; on a CPU that the host lacks
nothing is sampled, since nothing runs there.
"""

from __future__ import annotations

import errno
import os
import threading
import traceback
from collections.abc import Mapping
from typing import Any

from twin._model import ffi as model_ffi
from twin._model import lib as model_lib
from twin._serve import ffi, lib
from twin.errors import TwinError
from twin.faults.active import Faults
from twin.physics.model import Twin
from twin.serve.mirror import Mirror
from twin.serve.perf_events import PERF_TYPE_SOFTWARE, EventNames
from twin.serve.spare_counters import SpareCounters

_NO_GROUP, _OUTPUT, _CGROUP, _CLOEXEC = 1, 2, 4, 8
_ALL_FLAGS = 15
_FORMAT_GROUP = 1 << 3
_CPU_CLOCK, _TASK_CLOCK, _DUMMY = 0, 1, 9
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38
"""linux/perf_event.h, linux/capability.h."""

_KERNEL_TYPES = (2, 5)
"""PERF_TYPE_TRACEPOINT and PERF_TYPE_BREAKPOINT stay real. The host's other PMUs are hidden."""

_FUNCTIONS = {
    "counters": "void (*)(void *, int64_t *)",
    "zone_uj": "int64_t (*)(void *, int32_t)",
    "traffic_gb": "double (*)(void *, int32_t)",
}
"""Functions of csrc/model.h that are the source of csrc/serve.h."""


class _CallError(Exception):
    """The call fails with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class PerfService:
    """The counters of one served twin. ``device`` is the ``st_dev`` by which its descriptors are known."""

    def __init__(self, twin: Twin, faults: Faults, names: EventNames, settings: Mirror) -> None:
        self._faults = faults
        self._settings = settings
        self._names = names
        self._events = twin.machine.events
        self._n_cpus = twin.machine.cpus
        self._package_of = twin.machine.package_of
        self._real_cpus = os.cpu_count() or 1
        self._struck: tuple[int, ...] = ()
        self._table = lib.events_new(_source(twin))
        descriptors = ffi.new("int[2]")
        if error := lib.fuse_mount(b"nodectl-twin-perf", descriptors, descriptors + 1):
            raise TwinError(f"no file system for counters: {os.strerror(-error)}")
        self._fuse_fd, self._mount_fd = descriptors[0], descriptors[1]
        threading.Thread(target=lib.fuse_serve, args=(self._table, self._fuse_fd), name="counters", daemon=True).start()
        self.device = os.fstat(self._mount_fd).st_dev
        self._spare = SpareCounters(self._table, self._mount_fd)

    @property
    def open_counters(self) -> int:
        """The number of counters that programs have open."""
        return int(lib.events_count(self._table))

    def follow_faults(self) -> None:
        """Copy the active faults of counters into the table. Call it every few milliseconds."""
        struck = tuple(
            number for number, fault, stands in self._faults.listing() if stands and fault.target.startswith("perf:")
        )
        if struck == self._struck:
            return
        self._struck = struck
        for column, event in self._names.columns.items():
            for cpu in range(self._n_cpus):
                lib.events_set_fault(self._table, cpu, event, self._fault(column, cpu))

    def _fault(self, event: str, cpu: int) -> Any:
        fault = self._faults.counter(event, cpu)
        delay_us = round(self._faults.counter_delay_s(event, cpu) * 1e6)
        kind, shown = lib.COUNTER_WELL, 0
        match fault.kind if fault else "":
            case "missing":
                kind = lib.COUNTER_MISSING
            case "stuck" if fault and fault.value is None:
                kind = lib.COUNTER_STUCK
            case "stuck" | "absurd":
                kind, shown = lib.COUNTER_SHOWS, self._faults.counted(event, cpu, 0) or 0
        return {"kind": kind, "delay_us": delay_us, "shown": shown}

    # ---- one call ----------------------------------------------------------------------------------------------

    def answer(self, listener: int, call: Any) -> None:
        """Answer one call that this seccomp listener has received; from several threads."""
        attr = ffi.new("perf_attr_t *")
        try:
            if error := lib.seccomp_read_attr(listener, call, attr):
                raise _CallError(-error)
            leader = self._leader(call)
            if self._is_real(call, attr, leader):
                lib.seccomp_answer_kernel(listener, call.id)
                return
            fd = self._silent(call, attr) if self._is_silent(call, attr) else self._open(self._spec(call, attr, leader))
        except _CallError as error:
            lib.seccomp_answer_error(listener, call.id, error.number)
            return
        except Exception:
            # After any error, neither this caller nor the next may hang in its system call.
            traceback.print_exc()
            lib.seccomp_answer_error(listener, call.id, errno.EIO)
            return
        # If the caller has ended meanwhile, closing our copy releases the event.
        lib.seccomp_answer_fd(listener, call.id, fd, call.flags & _CLOEXEC)
        os.close(fd)

    def _leader(self, call: Any) -> int:
        """The id of the served leader named by ``group_fd``; 0 without a group, -1 for a foreign descriptor."""
        if call.group_fd == -1 or call.flags & _NO_GROUP:
            return 0
        try:
            status = os.stat(f"/proc/{call.caller}/fd/{call.group_fd}")
        except OSError:
            raise _CallError(errno.EBADF) from None
        return status.st_ino if status.st_dev == self.device else -1

    def _is_real(self, call: Any, attr: Any, leader: int) -> bool:
        if attr.type in _KERNEL_TYPES:
            return True
        if attr.type != PERF_TYPE_SOFTWARE or leader > 0:
            return False
        # The leader of a group may get hardware members, which the real kernel could not count.
        is_counting_leader = attr.read_format & _FORMAT_GROUP and not attr.sample_period and leader == 0
        return not is_counting_leader and call.cpu < self._real_cpus

    def _is_silent(self, call: Any, attr: Any) -> bool:
        """Whether it belongs to sampling on a CPU that the host lacks: perf requests an event and a buffer for each."""
        is_sampling = bool(attr.sample_period) or attr.config == _DUMMY
        return bool(attr.type == PERF_TYPE_SOFTWARE and is_sampling and self._real_cpus <= call.cpu < self._n_cpus)

    def _silent(self, call: Any, attr: Any) -> int:
        self._check_rights(call, attr)
        return _fd(lib.perf_open_silent(attr, call.caller if call.task == 0 else call.task, 0))

    def _spec(self, call: Any, attr: Any, leader: int) -> dict[str, Any]:
        """What to open, once the call is found to be one that can be served."""
        self._check_arguments(call, attr, leader)
        self._check_rights(call, attr)
        spec = {
            "kind": lib.EVENT_ZERO,
            "cpu": call.cpu,
            "task": call.caller if call.task == 0 else call.task,
            "real_fd": -1,
            "disabled": attr.disabled,
            "leader": leader,
            "read_format": attr.read_format,
        }
        describe = self._software if attr.type == PERF_TYPE_SOFTWARE else self._hardware
        return spec | describe(attr, spec)

    def _check_arguments(self, call: Any, attr: Any, leader: int) -> None:
        """In the kernel's order of errors (perf_event_open in kernel/events/core.c)."""
        if call.flags & ~_ALL_FLAGS or (call.task == -1 and call.cpu == -1) or call.task < -1 or call.cpu < -1:
            raise _CallError(errno.EINVAL)
        if call.flags & (_OUTPUT | _CGROUP) or attr.sample_period or attr.precise:
            raise _CallError(errno.EOPNOTSUPP)  # counting only, as a PMU without interrupt
        if call.cpu >= self._n_cpus or leader < 0 or (leader and (attr.pinned or attr.exclusive)):
            raise _CallError(errno.EINVAL)

    def _check_rights(self, call: Any, attr: Any) -> None:
        """EACCES by /proc/sys/kernel/perf_event_paranoid (Linux Documentation/admin-guide/perf-security.rst)."""
        try:
            if call.capabilities & (1 << _CAP_SYS_ADMIN | 1 << _CAP_PERFMON):
                return
            paranoid = int(self._settings.read("/proc/sys/kernel/perf_event_paranoid"))
            is_others = call.task > 0 and _status(call.task)["Uid"] != _status(call.caller)["Uid"]
        except FileNotFoundError:
            raise _CallError(errno.ESRCH) from None
        if is_others or (call.task == -1 and paranoid > 0) or (not attr.exclude_kernel and paranoid > 1):
            raise _CallError(errno.EACCES)

    def _software(self, attr: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A software event: the real kernel's if the host has such a CPU."""
        cpu, task = spec["cpu"], spec["task"]
        if cpu >= self._real_cpus:
            return {"kind": lib.EVENT_CLOCK} if attr.config in (_CPU_CLOCK, _TASK_CLOCK) else {}
        if task < 0:  # it always runs; we count it only while the group is enabled
            return {"kind": lib.EVENT_KERNEL, "real_fd": _fd(lib.perf_open_real(attr, -1, cpu, -1, 0))}
        fd = _fd(lib.perf_open_real(attr, task, cpu, self._real_leader(spec), attr.disabled))
        return {"kind": lib.EVENT_KERNEL, "real_fd": fd}

    def _hardware(self, attr: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
        """An event of the emulated hardware; ENOENT if the machine lacks it."""
        cpu, task = spec["cpu"], spec["task"]
        if task < 0 and (energy := self._names.energy(attr.type, attr.config, cpu)):
            return {"kind": lib.EVENT_ENERGY, "column": energy.zone, "range_uj": energy.range_uj}
        if share := self._names.traffic_share(attr.type, attr.config):
            if task >= 0:
                raise _CallError(errno.EINVAL)  # these count a package only
            return {"kind": lib.EVENT_TRAFFIC, "column": self._package_of[cpu], "scale": share}
        event = self._names.event(attr.type, attr.config)
        if event is None:
            raise _CallError(errno.ENOENT)
        if number := self._faults.counter_errno(event, cpu):
            raise _CallError(number)
        column, scale = self._names.columns[event], self._names.scale(attr.type, attr.config)
        if task < 0:
            return {"kind": lib.EVENT_COUNTER, "column": column, "scale": scale}
        if cpu >= self._real_cpus:
            return {}  # the task can never run on that CPU
        fd = _fd(lib.perf_open_task_clock(attr, task, cpu, self._real_leader(spec), attr.disabled))
        return {"kind": lib.EVENT_TASK, "column": column, "scale": scale, "real_fd": fd}

    def _real_leader(self, spec: Mapping[str, Any]) -> int:
        """The real event of the group's leader, so that the kernel switches a task's group together."""
        return int(lib.events_real_fd(self._table, spec["leader"])) if spec["leader"] else -1

    def _open(self, spec: Mapping[str, Any]) -> int:
        number, fd = self._spare.take()
        error = -number if number < 0 else -lib.events_open(self._table, ffi.new("event_spec_t *", spec), number)
        if error > 0:
            if number >= 0:
                self._spare.give_back((number, fd))
            if spec["real_fd"] >= 0:
                os.close(spec["real_fd"])
            raise _CallError(error)
        return fd


def _fd(result: int) -> int:
    """A descriptor, or the errno of the real call."""
    if result < 0:
        raise _CallError(-result)
    return result


def _status(task: int) -> dict[str, str]:
    with open(f"/proc/{task}/status", errors="replace") as lines:  # a name of any bytes
        return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def _source(twin: Twin) -> Any:
    """Addresses of the model's read functions, so that counters are read without the GIL."""
    functions = {
        name: ffi.cast(kind, int(model_ffi.cast("uintptr_t", model_ffi.addressof(model_lib, f"twin_model_{name}"))))
        for name, kind in _FUNCTIONS.items()
    }
    return {
        **functions,
        "model": ffi.cast("void *", twin.model_address),
        "n_cpus": twin.machine.cpus,
        "n_columns": model_lib.TWIN_EVENTS,
        "reference_column": model_lib.TWIN_REFERENCE,
        "reference_hz": twin.machine.tsc_khz * 1e3,
    }
