"""What a site adds without a fork: an object in a Python file, or one that an installed package announces.

A file is chosen as ``FILE.py[:NAME]``. A package announces its objects as entry points of a group, each by its name
(Python Packaging User Guide, "Entry points specification"). Both run with the rights of the program that loads them:
a file that another user may write is refused. A file is read once, so what runs is what its SHA-256 says.

An error in such code is one line that begins with its file and line.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import stat
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from foundation.digest import sha256_hex
from foundation.shell.errors import NodectlError, UsageError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
Answer = TypeVar("Answer")

_FILE: Final = re.compile(r"(?P<file>[^:]*\.py)(?::(?P<name>[A-Za-z_]\w*)(?=:|$))?(?::(?P<rest>.*))?", re.DOTALL)


MOST_BYTES: Final = 64 << 20
"""Ours: no code is larger, and an agent that reads a file of gigabytes is killed for its memory."""


class ExtensionError(UsageError):
    """An extension cannot be loaded: nothing was started."""


class ExtensionFailedError(NodectlError):
    """An extension raised an error while it was at work, or answered what it must not."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an extension came from, as journals and replays record it. ``package``: of an installed one, with its
    ``version``; ``file``, ``sha256``: what was loaded."""

    file: str
    sha256: str
    package: str = ""
    version: str = ""

    def __str__(self) -> str:
        given_by = f"{self.package} {self.version}, " if self.package else ""
        return f"{given_by}{self.file}, SHA-256 {self.sha256[:16]}"


def split(text: str) -> tuple[str, str]:
    """``NAME[:rest]`` or ``FILE.py[:NAME][:rest]`` as the choice and the rest."""
    if found := _FILE.fullmatch(text.strip()):
        name = f":{found['name']}" if found["name"] else ""
        return found["file"] + name, found["rest"] or ""
    choice, _, rest = text.partition(":")
    return choice.strip(), rest


def is_file(choice: str) -> bool:
    """Whether this chooses a file rather than a name."""
    return _FILE.fullmatch(choice) is not None


def same_name(first: str, second: str) -> bool:
    """Whether two choices are different files of one name."""
    files = [found["file"] for choice in (first, second) if (found := _FILE.fullmatch(choice))]
    paths = {os.path.abspath(file) for file in files}
    return len(paths) == 2 and len({os.path.basename(path) for path in paths}) == 1


def below(folder: Path, choice: Any) -> Any:
    """The choice with an absolute path, which so far was relative to ``folder``; names stay as they are."""
    found = _FILE.fullmatch(choice) if isinstance(choice, str) else None
    return os.path.abspath(folder / found["file"]) + choice[found.end("file") :] if found else choice


def located(error: BaseException, root: str = "") -> str:
    """``FILE:LINE: what``, the innermost line below ``root`` (a file, or a folder that ends in /) if there is one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    words = str(error).partition("\n")[0]
    what = f"{type(error).__name__}: {words}" if words else type(error).__name__
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [place for place in places if place[0].startswith(root)] if root else places
    return f"{inside[-1][0]}:{inside[-1][1]}: {what}" if inside else what


def in_one_line(error: BaseException) -> str:
    """An error of ours in its own words, any other with its place."""
    return str(error) if isinstance(error, NodectlError) else located(error)


class Extension(msgspec.Struct, Generic[T], frozen=True):
    """A policy or sharer and where it came from. ``origin`` is None for what ships with nodectl; ``root``: the file or
    folder of its code; ``module``: that its classes belong to, or that the package of this name has."""

    value: T
    origin: Origin | None = None
    root: str = ""
    module: str = ""

    def owns(self, module: str) -> bool:
        """Whether a module is part of the extension."""
        return bool(self.module) and (module == self.module or module.startswith(f"{self.module}."))

    def guarded(self, function: Callable[..., Answer], check: Callable[[Answer], str] | None = None) -> Any:
        """``function``, whose errors become one ``ExtensionFailedError``, as does an answer for which ``check`` has
        words. ``ValueError`` passes if nothing checks answers: a composition says so that parameters do not fit."""

        @functools.wraps(function)
        def call(*arguments: Any) -> Answer:
            try:
                answer = function(*arguments)
            except (Exception, SystemExit) as error:
                if check is None and isinstance(error, ValueError):
                    raise
                raise self.failure(function, error) from error
            if check and (problem := check(answer)):
                raise ExtensionFailedError(f"{where_defined(function)}: {problem}")
            return answer

        return call

    def failure(self, function: Callable[..., Any], error: BaseException) -> NodectlError:
        """The error in one line. One of ours, which has its line already, stays as it is."""
        if isinstance(error, NodectlError):
            return error
        where = located(error, self.root)
        return ExtensionFailedError(where if where.startswith(self.root) else f"{where_defined(function)}: {where}")


class Extensions(msgspec.Struct, Generic[T], frozen=True):
    """One kind of thing that can be added. ``group``: of its entry points; ``attribute``: what a file calls it if the
    choice does not say; ``shipped``: names that are taken; ``check``: what is wrong with one, or nothing."""

    group: str
    kind: type[T]
    attribute: str
    shipped: Collection[str]
    check: Callable[[T], str]

    def names(self) -> list[str]:
        """The names that installed packages announce. ``ExtensionError`` if one of them has two meanings."""
        names = sorted({entry.name for entry in self._entries()})
        for name in names:
            self._entry(name)
        return names

    def find(self, choice: str) -> Extension[T] | None:
        """What is chosen, from a file or a package; None: no package announces this name. ``ExtensionError`` if it
        cannot be loaded, or if the name has two meanings."""
        if found := _FILE.fullmatch(choice):
            return self._from_file(Path(os.path.abspath(found["file"])), found["name"] or self.attribute)
        entry = self._entry(choice)
        return self._from_package(entry) if entry else None

    def _entries(self) -> list[EntryPoint]:
        if not _is_announced(self.group, tuple(sys.path)):
            return []
        from importlib.metadata import entry_points  # takes longer than a short command

        return list(entry_points(group=self.group))

    def _entry(self, name: str) -> EntryPoint | None:
        entries = [entry for entry in self._entries() if entry.name == name]
        packages = [entry.dist.name if entry.dist else entry.module for entry in entries]
        if entries and name in self.shipped:
            raise ExtensionError(
                f"{name!r} ships with nodectl, and the package {packages[0]} announces it too ({self.group}): uninstall"
                " the package, or give it another name there"
            )
        if len(entries) > 1:
            raise ExtensionError(
                f"{name!r} is announced by {' and by '.join(sorted(packages))} ({self.group}): uninstall one of them"
            )
        return entries[0] if entries else None

    def _from_file(self, path: Path, name: str) -> Extension[T]:
        module, origin, source = _loaded(path)
        if not hasattr(module, name):
            known = [key for key, value in vars(module).items() if isinstance(value, self.kind)]
            hint = nearest(name, known) if known else f" (from {self.kind.__module__} import {self.kind.__name__})"
            raise ExtensionError(f"{path}: defines no {name}{hint}")
        value = getattr(module, name)
        extension = Extension(value, origin, str(path), module.__name__)
        self._refuse(value, name, lambda: f"{path}:{_defined(source, name)}")
        taken = getattr(value, "name", "")
        if taken in self.shipped:
            raise ExtensionError(
                f"{path}:{_defined(source, name)}: {name} is called {taken!r}, which ships with nodectl: give it"
                " another name"
            )
        return extension

    def _from_package(self, entry: EntryPoint) -> Extension[T]:
        package, version = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")
        top = entry.module.partition(".")[0]
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:
            found = sys.modules.get(top)
            raise ExtensionError(f"package {package}: {located(error, _root(found) if found else '')}") from None
        file = str(sys.modules[entry.module].__file__)
        self._refuse(value, entry.attr, lambda: f"package {package}: {file}:{_defined(_bytes(file), entry.attr)}")
        own_name = getattr(value, "name", entry.name)
        if own_name != entry.name:
            raise ExtensionError(
                f"package {package}: {file}:{_defined(_bytes(file), entry.attr)}: announced as {entry.name!r}, but"
                f" called {own_name!r}"
            )
        origin = Origin(file, sha256_hex(_bytes(file)), package, version)
        return Extension(value, origin, _root(sys.modules[top]), top)

    def _refuse(self, value: Any, name: str, where: Callable[[], str]) -> None:
        if not isinstance(value, self.kind):
            api = f"{self.kind.__module__}.{self.kind.__name__}"
            raise ExtensionError(f"{where()}: {name} is no {api}")
        if problem := self.check(value):
            raise ExtensionError(f"{where()}: {name}: {problem}")


def misfit(function: Any, *parameters: str) -> str:
    """Why a function cannot be called with these parameters in this order; empty: it can be."""
    words = f"({', '.join(parameters)})"
    if not callable(function):
        return f"is no function of {words}"
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        return f"cannot be called with {words}: {error}"
    except ValueError:  # written in C, and does not say
        return ""
    return ""


def misfit_params(kind: Any) -> str:
    """Why these parameters cannot be read; empty: they can be."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return "is no msgspec.Struct"
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return f"has no default for {', '.join(missing)}" if missing else ""


_MODULES: Final[dict[Path, tuple[ModuleType, Origin, bytes]]] = {}


def _loaded(path: Path) -> tuple[ModuleType, Origin, bytes]:
    """The file as a module. It is called by the file's name, dot and all, which no import can have: so a recorded state
    finds its class again wherever the file is. Of two files of one name that is the one that was chosen last."""
    if path in _MODULES:
        sys.modules[path.name] = _MODULES[path][0]
        return _MODULES[path]
    source = _own_file(path)
    module = ModuleType(path.name)
    module.__file__ = str(path)
    sys.modules[path.name] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[path.name]
        raise ExtensionError(located(error, str(path))) from None
    _MODULES[path] = module, Origin(str(path), sha256_hex(source)), source
    return _MODULES[path]


def _own_file(path: Path) -> bytes:
    """What is in the file, if only root and this process's own user can change it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ExtensionError(f"{path}: is no regular file")
            if found.st_uid not in (0, os.geteuid()):
                raise ExtensionError(
                    f"{path}: belongs to user {found.st_uid}, who could have user {os.geteuid()} run anything: chown it"
                )
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ExtensionError(
                    f"{path}: others may write this code (mode {found.st_mode & 0o777:o}): chmod go-w it"
                )
            if found.st_size > MOST_BYTES:
                raise ExtensionError(f"{path}: is larger than {MOST_BYTES >> 20} MiB: keep data in a file next to it")
            return file.read()
    except OSError as error:
        raise ExtensionError(f"{path}: cannot read it: {error.strerror}") from None


def _bytes(file: str) -> bytes:
    return Path(file).read_bytes()


def _root(module: ModuleType) -> str:
    """Where a package's code is: its folder, or the file of one that is a single module."""
    file = str(getattr(module, "__file__", None) or "")
    return f"{os.path.dirname(file)}/" if hasattr(module, "__path__") else file


def _defined(source: bytes, name: str) -> int:
    """The line of a module at which a name gets its value, 1 if that cannot be seen."""
    import ast

    for statement in ast.parse(source).body:
        named = [getattr(statement, "name", None)]  # of a function or class
        named += [getattr(target, "id", None) for target in getattr(statement, "targets", [])]
        named += [getattr(getattr(statement, "target", None), "id", None)]
        named += [alias.asname or alias.name for alias in getattr(statement, "names", []) if hasattr(alias, "name")]
        if name in named:
            return statement.lineno
    return 1


def where_defined(function: Callable[..., Any]) -> str:
    """``FILE:LINE`` of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


@functools.cache
def _is_announced(group: str, folders: tuple[str, ...]) -> bool:
    """Whether some installed package may announce anything in the group. A look at the files of the entry points: the
    library that reads them properly takes longer to import than a short command runs."""
    wanted = re.compile(rb"^\s*\[\s*%s\s*\]" % re.escape(group.encode()), re.MULTILINE)
    for folder in dict.fromkeys(folders):
        try:
            names = [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for name in names:
            try:
                text = Path(folder or ".", name, "entry_points.txt").read_bytes()
            except OSError:
                continue
            if wanted.search(text):
                return True
    return False
