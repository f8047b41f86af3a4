"""The entry point of ``nodectl`` and ``clusterctl``: imports the rest, which takes a while.

Ctrl-C during an import would print a traceback, and some modules turn it into an error of their own. Nothing has begun
by then, so the process ends at once, with the exit status that shells use for it. A later Ctrl-C is handled where all
errors end (``command_line.call``).

What a program says must not end it. A full disk, a reader that has gone or a terminal that has hung up makes each
write to stderr fail, and a locale may lack a character: an agent that stopped for that would leave its node without a
cap. So stderr loses what it cannot write, and what an encoding lacks is shown as its escape. A stream that was closed
before the start is /dev/null, since the next file to be opened would have its number, and get what is meant for it.
Sources: write(2); "Security considerations" of POSIX execve (descriptors 0 to 2).
"""

import importlib
import os
import signal
import sys
from typing import Any, TextIO, cast


class LossyStream:
    """A text stream that drops what cannot be written (ENOSPC, EPIPE, EIO)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write it, or lose it."""
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Write what is left, or lose it."""
        try:
            self._stream.flush()
        except OSError:
            return


def prepare_streams() -> None:
    """Make stdin, stdout and stderr of this process such that none can end it; see above. Twice does no harm."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (lasts as long as the process)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):  # not one that a test has put in its place
        sys.stdout.reconfigure(errors="backslashreplace")
    if not isinstance(sys.stderr, LossyStream):
        sys.stderr = cast(TextIO, LossyStream(sys.stderr or open(2, "w", errors="backslashreplace", closefd=False)))  # noqa: SIM115


def start(program: str, module: str) -> int:
    """Run ``main`` of ``module`` and return its exit status."""

    def stop(*_: object) -> None:
        os.write(2, f"{program}: stopped\n".encode())
        os._exit(128 + signal.SIGINT)

    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have set it to ignore
    if is_ours:
        signal.signal(signal.SIGINT, stop)
    main = importlib.import_module(module).main
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main())


def nodectl() -> int:
    """The command ``nodectl``."""
    return start("nodectl", "nodectl.cli")
