"""The entry point of ``nodectl`` and ``clusterctl``: imports the rest, which takes a while.

Ctrl-C during an import would print a traceback, and some modules turn it into an error of their own. Nothing has begun
by then, so the process ends at once, with the exit status that shells use for it. A later Ctrl-C is handled where all
errors end (``command_line.call``).
"""

import importlib
import os
import signal


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
