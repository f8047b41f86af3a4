"""A policy's state to plain values for a keyframe, and back, bit for bit.

A state is a frozen dataclass or msgspec.Struct of numbers, text, tuples, lists, dicts, numpy arrays and more of the
same. Arrays keep type, shape, memory order (a sum runs in memory order, and its last bit with it) and every bit, NaN
payloads included. Classes are written by name, and on reading looked up only among the modules the caller allows: a
journal is data, and must not decide what is imported. Classes whose module has moved keep the name that they have in
journals already written (``RECORDED_MODULES``).
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec
import numpy as np

_PLAIN = (type(None), bool, str, bytes)

RECORDED_MODULES: Final = {
    "nodectl.decide.power_walk": "nodectl.power_walk",
    "nodectl.decide.temperature_limit": "nodectl.thermal",
    "nodectl.policies.parts.gpu_state": "nodectl.policies.gpu_state",
}
"""Modules of state classes that have moved: where they are, and what journals of format 1 call them."""
_MOVED: Final = {recorded: module for module, recorded in RECORDED_MODULES.items()}


LATER: Final = "later"
"""In the metadata of a dataclass field: states of older journals lack it. It is None by default, and not written while
it is None, so those journals replay to the same bytes. A field of a Struct is such a one if its default is None."""


class StateError(TypeError):
    """A state has a part that cannot be stored, or names a class that does not exist here."""


def encode_state(value: Any) -> Any:
    """``value`` as nested lists of plain values, fit for MessagePack: each non-plain value is ``[tag, ...]``."""
    if isinstance(value, np.ndarray):
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return ["array", value.dtype.str, list(value.shape), order, value.tobytes(order)]
    if isinstance(value, np.generic):
        return ["scalar", value.dtype.str, value.tobytes()]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, int) and type(value) is int:
        return value if -(2**63) <= value < 2**64 else ["int", str(value)]
    if type(value) is float:
        return ["float", struct.pack("<d", value)]
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [type(value).__name__, [encode_state(item) for item in value]]
    if type(value) is dict:
        return ["dict", [[encode_state(key), encode_state(item)] for key, item in value.items()]]
    return _encode_object(value)


def _encode_object(value: Any) -> list[Any]:
    """A dataclass or Struct as its module, name and fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [
            field.name
            for field in dataclasses.fields(value)
            if LATER not in field.metadata or getattr(value, field.name) is not None
        ]
    elif isinstance(value, msgspec.Struct):
        later = {field.name for field in msgspec.structs.fields(value) if field.default is None}
        names = [name for name in value.__struct_fields__ if name not in later or getattr(value, name) is not None]
    else:
        raise StateError(f"a policy's state has a {type(value).__name__}, which a journal cannot store")
    kind = type(value)
    module = RECORDED_MODULES.get(kind.__module__, kind.__module__)
    return ["object", module, kind.__qualname__, [[n, encode_state(getattr(value, n))] for n in names]]


def decode_state(tree: Any, modules: Collection[str]) -> Any:
    """The value that ``encode_state`` encoded. Classes come from ``modules``, which must be imported already."""
    if not isinstance(tree, list):
        return tree
    match tree:
        case ["array", str(dtype), list(shape), str(order), bytes(data)]:
            flat = np.frombuffer(data, np.dtype(dtype)).copy()
            return flat.reshape(shape, order="F" if order == "F" else "C")
        case ["scalar", str(dtype), bytes(data)]:
            return np.frombuffer(data, np.dtype(dtype))[0]
        case ["int", str(digits)]:
            return int(digits)
        case ["float", bytes(data)]:
            return struct.unpack("<d", data)[0]
        case ["list", list(items)]:
            return [decode_state(item, modules) for item in items]
        case ["tuple", list(items)]:
            return tuple(decode_state(item, modules) for item in items)
        case ["dict", list(items)]:
            return {decode_state(key, modules): decode_state(item, modules) for key, item in items}
        case ["object", str(module), str(name), list(fields)]:
            kind = _class(module, name, modules)
            return kind(**{field: decode_state(item, modules) for field, item in fields})
    raise StateError(f"a recorded state has a part that is not known here: {tree[:1]!r}")


def _class(recorded: str, name: str, modules: Collection[str]) -> Any:
    module = _MOVED.get(recorded, recorded)
    if module not in modules or module not in sys.modules:
        raise StateError(f"a recorded state is of class {module}.{name}, which no policy here uses")
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, msgspec.Struct))):
        raise StateError(f"a recorded state is of class {module}.{name}, which is not there any more")
    return found
