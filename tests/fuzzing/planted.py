"""Faults put into readers on purpose: the fuzzer of each must find every one of them.

A fault is a module, a text that is in its source once, and what replaces it there. Only code of functions is exchanged,
so that classes, exceptions and constants stay the same objects.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

type_fault = tuple[str, str, str]


@contextmanager
def planted(name: str, before: str, after: str) -> Iterator[None]:
    """The module with this change in it, until the block is left."""
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    assert source.count(before) == 1, f"{name} has {before!r} {source.count(before)} times"
    changed = dict(_codes(compile(source.replace(before, after), str(module.__file__), "exec")))
    originals = {function: function.__code__ for function in _functions(module)}
    exchanged = 0
    try:
        for function, code in originals.items():
            new = changed[code.co_qualname]
            if (new.co_code, new.co_consts, new.co_names) != (code.co_code, code.co_consts, code.co_names):
                function.__code__ = new
                exchanged += 1
        assert exchanged, f"{name}: no function differs"
        yield
    finally:
        for function, code in originals.items():
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one.co_qualname, one
            yield from _codes(one)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        for one in (value, *(vars(value).values() if inspect.isclass(value) else ())):
            found: Any = getattr(one, "fget", None) or getattr(one, "__func__", None) or one
            found = inspect.unwrap(found) if callable(found) else found
            if isinstance(found, FunctionType) and found.__module__ == module.__name__:
                yield found


TEXT: Final = "pmu.foreign_text"
MARK: Final = (TEXT, "raw.removeprefix(codecs.BOM_UTF8)", "raw")
WIDE: Final = (TEXT, "if raw.startswith(mark):", "if False:")
CUT: Final = (TEXT, "if not one.eof:", "if False:")

FAULTS: Final[dict[str, tuple[type_fault, ...]]] = {}
