"""Mutants of C sources: universalmutator changes a line, the tests that load the code into their process judge it.

What counts as a mutant, by rules that need no judgement:

- comments are removed first, because universalmutator leaves out every line that has one;
- a mutant that the project's flags refuse (warnings are errors, as in ``make lint``) is none;
- a mutant whose assembly is the original's, compiled as the project compiles it, is equivalent, and mutants with the
  same assembly are one mutant (Papadakis et al., Trivial Compiler Equivalence, ICSE 2015).

universalmutator makes some 2,500 mutants of a file of 200 lines. Of the safety set a quarter is tried, chosen by a hash
of what a mutant changes, so that an edit elsewhere in the file keeps the choice. Of files that are named, and of all
files together, each mutant is tried.

A mutant is compiled from memory into a library of its own, in a temporary folder: nothing in the working tree changes,
whenever a run is killed. ``fork_server.py`` has collected the tests already, forks for each mutant, loads its library
and runs the tests, those first that killed most mutants for their time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import queue
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import threading
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.results import Mutation, MutationError, Outcome, Result, Target, numbered, read_entries, squeeze

_FIRMWARE = "firmware_bridge/controlpulp/src"
_LAW_TESTS = (
    "tests/firmware/test_law.py",
    "tests/firmware/test_control.py",
    "tests/firmware/test_chip_and_plant.py",
)
_GUARD_TESTS = (*_LAW_TESTS, "tests/firmware/test_guard.py")
_DECODE_TESTS = ("tests/pmu/test_decode_rules.py", "tests/pmu/test_decode.py", "tests/pmu/test_rapl.py")
_PLATFORM_TESTS = (
    "tests/firmware/test_scmi_core.py",
    "tests/firmware/test_platform.py",
    "tests/firmware/test_platform_agents.py",
    "tests/scmi/test_firmware.py",
)
TARGETS: Sequence[Target] = (
    Target(f"{_FIRMWARE}/allocate.c", _LAW_TESTS),
    Target(f"{_FIRMWARE}/control.c", _LAW_TESTS),
    Target("pmu/csrc/decode.c", _DECODE_TESTS),
    Target(f"{_FIRMWARE}/guard.c", _GUARD_TESTS, is_safety=False),
    Target(f"{_FIRMWARE}/scmi.c", _PLATFORM_TESTS, is_safety=False),
)
BUILDERS = {"firmware_bridge": "firmware_bridge.build_firmware", "pmu": "pmu.build_native"}
SAFETY_EVERY = 4

RULES = ["universal.rules", "c_like.rules", "c.rules"]
STRICT = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]  # scripts/lint_c.sh
TRAPS = ["-fno-wrapv", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
SANITIZED = ("firmware_bridge/",)
"""What the suite runs with sanitizers too (tests/firmware/test_sanitizers.py): survivors are tried with ``TRAPS``."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed source. ``line``: of the change."""

    mutation: Mutation
    line: int
    source: str


def try_mutants(root: Path, targets: Sequence[Target], jobs: int, every: int) -> Iterator[Result]:
    """See ``results.py``. Known survivors are tried whatever ``every`` says, so that none is listed for nothing."""
    if every == 1 and list(targets) == [target for target in TARGETS if target.is_safety]:
        every = SAFETY_EVERY
    known = read_entries(root / "tests/mutants.toml").keys()
    for target in targets:
        with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
            yield from _try_file(root, target, jobs, every, known, Path(scratch))


# ---- making mutants ----


def without_comments(text: str) -> str:
    """The same lines."""
    bare = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", "", comment.group()), text, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", bare, flags=re.MULTILINE)


def functions_of(lines: Sequence[str]) -> list[str]:
    """For each line the function that it is in, "" outside."""
    names, current = [], ""
    for line in lines:
        if re.match(r"[A-Za-z_]", line):
            head = re.match(r"[^=;]*?(\w+)\(", line)
            current = head.group(1) if head else ""
        names.append("" if line.startswith("#") else current)
        if line.startswith("}"):
            current = ""
    return names


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All that universalmutator makes of a source without comments, in its order."""
    from universalmutator import mutator  # installed by `make mutate` alone

    lines = text.splitlines(keepends=True)
    names = functions_of(lines)
    with contextlib.redirect_stdout(io.StringIO()):
        made = mutator.mutants_regexp(lines, ruleFiles=RULES, ignorePatterns=[])
    places = [(number - 1, changed) for number, changed, *_ in made]
    mutations = numbered([Mutation(file, names[at], squeeze(lines[at]), squeeze(changed)) for at, changed in places])
    return [
        Mutant(mutation, at + 1, "".join([*lines[:at], changed, *lines[at + 1 :]]))
        for mutation, (at, changed) in zip(mutations, places, strict=True)
    ]


def sample_of(mutants: Sequence[Mutant], every: int, known: Collection[Mutation]) -> list[Mutant]:
    """Those that are known, first; and about one in ``every`` of the others."""
    return [mutant for mutant in mutants if mutant.mutation in known] + [
        mutant for mutant in mutants if mutant.mutation not in known and is_chosen(mutant.mutation, every)
    ]


def is_chosen(mutation: Mutation, every: int) -> bool:
    """Whether the hash of its own text puts it into the sample."""
    return int.from_bytes(hashlib.sha256(str(mutation).encode()).digest()) % every == 0


# ---- building ----


@dataclass(frozen=True, slots=True)
class Built:
    """A module without the mutated source, and how this source is compiled."""

    module: str
    library: Path
    compiler: list[str]
    folder: Path  # of the source: its headers


def build_without(root: Path, file: str, scratch: Path) -> Built:
    """The module as setup.py builds it, except that the code of ``file`` is looked for when it is first called."""
    builder = importlib.import_module(BUILDERS[file.partition("/")[0]])
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        extension = builder.ffibuilder.distutils_extension(tmpdir=str(scratch))
    flags = [flag for flag in shlex.split(sysconfig.get_config_var("CFLAGS") or "") if flag != "-g"]
    flags += [f"-D{name}" + (f"={value}" if value else "") for name, value in extension.define_macros]
    flags += [f"-I{root / folder}" for folder in extension.include_dirs] + extension.extra_compile_args
    compiler = [*shlex.split(os.environ.get("CC", "gcc")), *flags, "-fPIC"]
    objects: list[str] = []
    for source in extension.sources:
        if source != file:
            objects.append(str(scratch / f"{len(objects)}.o"))
            command = [*compiler, f"-I{sysconfig.get_path('include')}", "-c", source, "-o", objects[-1]]
            subprocess.run(command, cwd=root, check=True)
    library = scratch / "module.so"
    subprocess.run([compiler[0], "-shared", "-Wl,-z,lazy", *objects, "-lm", "-o", str(library)], check=True)
    return Built(extension.name, library, compiler, (root / file).parent)


def assembly(built: Built, source: str, more: Sequence[str] = STRICT) -> bytes:
    """Empty if the project's flags refuse the source."""
    command = [*built.compiler, *more, "-S", "-o", "-", "-x", "c", "-"]
    ran = subprocess.run(command, input=source.encode(), cwd=built.folder, capture_output=True)
    return b"" if ran.returncode else ran.stdout


def link(built: Built, code: bytes, library: Path) -> Path:
    """A library of the mutated source alone."""
    command = [built.compiler[0], "-shared", "-x", "assembler", "-", "-o", str(library)]
    subprocess.run(command, input=code, check=True, capture_output=True)
    return library


# ---- judging ----


class Judge:
    """A fork server with the tests collected."""

    def __init__(self, root: Path, target: Target, built: Built) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, "-m", "tests.mutation.fork_server", str(requests), str(answers), built.module]
        self._server = subprocess.Popen(
            [*command, str(built.library), *target.tests],
            cwd=root,
            pass_fds=(requests, answers),
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        os.close(requests)
        os.close(answers)
        self._reader = os.fdopen(self._answers)

    def ask(self, library: Path) -> tuple[str, float]:
        """The test that fails with this library, or "", and the seconds of a processor that it took to say so."""
        os.write(self._requests, f"{library}\n".encode())
        line = self._reader.readline()
        if not line:
            raise MutationError(f"the tests could not be collected: {shlex.join(map(str, self._server.args))}")  # type: ignore[arg-type]
        killer, seconds = json.loads(line)
        return killer, seconds

    def close(self) -> None:
        """Ends the server."""
        os.close(self._requests)
        self._server.wait()
        self._reader.close()


def _try_file(
    root: Path, target: Target, jobs: int, every: int, known: Collection[Mutation], scratch: Path
) -> Iterator[Result]:
    built = build_without(root, target.file, scratch)
    text = without_comments((root / target.file).read_text())
    made = mutants_of(target.file, text)
    sampled = sample_of(made, every, known)
    with ThreadPoolExecutor(jobs) as pool:
        codes = list(pool.map(lambda mutant: zlib.compress(assembly(built, mutant.source), 1), sampled))
    original, refused = (zlib.compress(code, 1) for code in (assembly(built, text), b""))
    if original == refused:
        raise MutationError(f"{target.file} does not compile without a mutation")
    chosen = {code for mutant, code in zip(sampled, codes, strict=True) if is_chosen(mutant.mutation, every)}
    distinct: dict[bytes, Mutant] = {}
    for mutant, code in zip(sampled, codes, strict=True):
        if code not in (original, refused):
            distinct.setdefault(code, mutant)
    print(
        f"{target.file}: {len(made)} mutants made, {len(sampled)} of them compiled (1 in {every});",
        f"{codes.count(refused)} refused, {codes.count(original)} equivalent, {len(distinct)} different ones tried",
        file=sys.stderr,
    )

    waiting: queue.SimpleQueue[tuple[bytes, Mutant]] = queue.SimpleQueue()
    for row in distinct.items():
        waiting.put(row)
    decided: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()

    def work(number: int) -> None:
        judge = Judge(root, target, built)

        def killer_of(code: bytes, source: str) -> tuple[str, float]:
            library = scratch / f"{number}.so"
            killer, seconds = judge.ask(link(built, zlib.decompress(code), library))
            if not killer and target.file.startswith(SANITIZED):
                killer, more_seconds = judge.ask(link(built, assembly(built, source, TRAPS), library))
                seconds += more_seconds
            return killer, seconds

        try:
            killer, _ = killer_of(original, text)
            if killer:
                raise MutationError(f"{target.file}: a test fails without a mutation: {killer}")
            with contextlib.suppress(queue.Empty):
                while True:
                    code, mutant = waiting.get_nowait()
                    killer, seconds = killer_of(code, mutant.source)
                    outcome: Outcome = "survived" if not killer else "timeout" if "(late)" in killer else "killed"
                    decided.put(Result(mutant.mutation, outcome, seconds, mutant.line, code in chosen))
            decided.put(None)
        except BaseException as failure:
            decided.put(failure)
        finally:
            judge.close()

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(jobs)]
    for worker in workers:
        worker.start()
    ended = 0
    while ended < jobs:
        result = decided.get()
        if isinstance(result, BaseException):
            raise result
        if result is None:
            ended += 1
        else:
            yield result
