"""The process that runs the tests of one module against one mutant after the other.

A fresh interpreter for each mutant would spend most of the time importing. So this process collects the tests once and
forks a child for each mutant. In the child the functions that the mutant changes get the code of the mutant, and the
tests run. A mutant outside of functions, or in one that is called while modules are imported, is tried in a child that
imports everything again from the mutated file.

The tests run in the copy of the tree that is the working directory, so programs that they start see the mutant too.
Every test has a limit of CPU time, far above what it needs, and all together one of real time for those that hang.
The shortest test runs first; the first that fails ends it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NoReturn, TypeAlias

import pytest

LEAST_S: Final = 2.0
TIMES: Final = 20
"""Ours: a test may take so many times the CPU time that it takes without a mutation, and at least ``LEAST_S``."""

HANGING_S: Final = 60.0
"""Ours: what all tests together may take in real time, besides ``TIMES`` what they need."""

MOST_BYTES: Final = 4 << 30
"""Ours: a mutant that allocates without end is stopped before the machine is."""

Durations: TypeAlias = dict[str, float]
Functions: TypeAlias = dict[tuple[str, int], CodeType]
"""By qualified name and first line in the original."""


class Slot:
    """A pytest plugin that runs the tests as above. Where ``requests`` are given it stops before the first test, and
    serves them, each in a child, until there are no more."""

    def __init__(self, file: str, driver: socket.socket, requests: socket.socket | None) -> None:
        self._path = str(Path(file).resolve())
        self._original = Path(file).read_text()
        self._driver, self._requests = driver, requests
        self._called: set[str] = set()
        self._durations: Durations = {}
        self._record = ""

    def begin(self, request: Mapping[str, Any]) -> None:
        """This is a child, which runs the tests."""
        os.setpgid(0, 0)
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._durations, self._record, self._requests = request["durations"], request["record"], None

    # --- pytest's hooks

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """The same examples for each mutant; that one fails is enough, it need not be the smallest."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", phases=phases, derandomize=True, deadline=None, database=None)
        settings.load_profile("mutation")
        if self._requests:
            sys.setprofile(self._note_call)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Not the tests that judge speed: they may fail for the machine's sake."""
        items[:] = [item for item in items if "yardstick" not in item.name]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Serve the requests; the tests run after this, in a child."""
        sys.setprofile(None)
        if self._requests and not session.testsfailed:
            self._serve(self._requests)
        session.items.sort(key=lambda item: self._durations.get(item.nodeid, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit and measure each test's CPU time."""
        limit_s = max(LEAST_S, TIMES * self._durations.get(item.nodeid, math.inf))
        signal.setitimer(signal.ITIMER_PROF, min(limit_s, 1e6))  # its signal ends this child
        began_s = time.process_time()
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._durations[item.nodeid] = time.process_time() - began_s
        return result

    def pytest_sessionfinish(self) -> None:
        """Note how long each test took, if that was requested."""
        if self._record:
            Path(self._record).write_text(json.dumps(self._durations))

    def _serve(self, requests: socket.socket) -> None:
        """Returns in children only."""
        functions = _functions_of(self._path)
        _send(requests, {"modules": _modules_of_others()})
        for line in requests.makefile("r"):
            request = json.loads(line)
            changed = changed_functions(self._original, request["source"], self._path)
            if changed is None or not self._called.isdisjoint(name for name, _ in changed):
                _send(requests, {"outcome": "fresh"})
                continue
            child = os.fork()
            if not child:
                self.begin(request)
                for key, code in changed.items():
                    for function in functions.get(key, ()):
                        function.__code__ = code
                return
            _send(requests, _outcome_of(child, request, self._driver))
        os._exit(0)

    def _note_call(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == self._path:
            self._called.add(frame.f_code.co_qualname)


def changed_functions(original: str, mutated: str, path: str) -> Functions | None:
    """The functions that differ, with their new code; None if something else does too."""
    changed: Functions = {}
    before, after = (compile(text, path, "exec", dont_inherit=True) for text in (original, mutated))
    return changed if _collect_changes(before, after, changed) else None


def _collect_changes(before: CodeType, after: CodeType, changed: Functions) -> bool:
    """Add what differs to ``changed``; False if that is not in functions alone."""
    if _shape(before) == _shape(after):
        return True
    if before.co_flags & inspect.CO_OPTIMIZED:
        changed[before.co_qualname, before.co_firstlineno] = after
        return _signature(before) == _signature(after)
    if _shape(before, is_deep=False) != _shape(after, is_deep=False):
        return False
    pairs = zip(before.co_consts, after.co_consts, strict=True)
    return all(_collect_changes(*pair, changed) for pair in pairs if isinstance(pair[0], CodeType))


def _shape(code: CodeType, is_deep: bool = True) -> tuple[object, ...]:
    """All of a code object but where its lines are."""
    inner = _shape if is_deep else (lambda _: None)
    consts = [inner(one) if isinstance(one, CodeType) else (type(one), repr(one)) for one in code.co_consts]
    return (code.co_code, code.co_names, code.co_exceptiontable, _signature(code), consts)


def _signature(code: CodeType) -> tuple[object, ...]:
    names = (code.co_qualname, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, *names)


def _functions_of(path: str) -> dict[tuple[str, int], list[FunctionType]]:
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == path:
            found.setdefault((one.__code__.co_qualname, one.__code__.co_firstlineno), []).append(one)
    return found


def _modules_of_others() -> list[str]:
    """What is imported, but for modules of the tree itself."""
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    return [name for name, file in files.items() if name != "__main__" and not file.startswith(os.getcwd() + os.sep)]


def _outcome_of(child: int, request: Mapping[str, Any], driver: socket.socket) -> dict[str, object]:
    """Wait for a child. It is ended when it hangs, or when nobody is there any more to hear of it."""
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    pidfd = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    waiting.register(driver, select.POLLRDHUP)
    hanging_s = HANGING_S + TIMES * sum(request["durations"].values())
    ready = [fd for fd, _ in waiting.poll(1000 * hanging_s if request["durations"] else None)]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(pidfd)
    if driver.fileno() in ready:
        os._exit(1)
    outcome = "killed"
    if not ready or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
        outcome = "timeout"
    elif os.waitstatus_to_exitcode(status) == pytest.ExitCode.OK:
        outcome = "survived"
    return {"outcome": outcome, "seconds": usage.ru_utime + usage.ru_stime}


def _send(to: socket.socket, message: Mapping[str, object]) -> None:
    to.sendall(json.dumps(message).encode() + b"\n")


def _run(slot: Slot, tests: list[str]) -> NoReturn:
    options = ["-x", "-q", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", f"--basetemp={os.getcwd()}.tmp"]
    os._exit(pytest.main([*options, *tests], plugins=[slot]))


def main(driver_fd: int, file: str, *tests: str) -> None:
    """Answer the driver's requests, one a line: ``source``, the mutant's text; ``durations`` of the tests in CPU time;
    ``record``, a file for what they are now, or "". Before the first a line says that the tests could be collected."""
    driver = socket.socket(fileno=driver_fd)
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        _run(Slot(file, driver, theirs), list(tests))
    theirs.close()
    answers = ours.makefile("r")
    collected = answers.readline()
    if not collected:
        sys.exit("the tests cannot be collected")
    slot = Slot(file, driver, None)
    for cached in Path(file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
        cached.unlink()  # from here on the file changes more often than its time stamp
    for name in json.loads(collected)["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _send(driver, {})
    for line in driver.makefile("r"):
        request = json.loads(line)
        Path(file).write_text(request["source"])
        ours.sendall(line.encode())
        answer = json.loads(answers.readline())
        if answer["outcome"] == "fresh":
            child = os.fork()
            if not child:
                slot.begin(request)
                _run(slot, list(tests))
            answer = _outcome_of(child, request, driver)
        _send(driver, answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
