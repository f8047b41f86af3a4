"""The first of ours that ``nodectl`` and ``clusterctl`` run: what they are made of takes a while to import.

Ctrl-C meanwhile would be a traceback out of whatever was being imported, and some modules turn it into an error of
their own. Nothing has been begun by then, so the process ends at once, with the status that shells have for it. What
comes later is caught where all errors end (``command_line.call``).
"""

import importlib
import os
import signal


def start(program: str, module: str) -> int:
    """Run ``main`` of ``module`` and return its exit status."""

    def stop(*_: object) -> None:
        os.write(2, f"{program}: stopped\n".encode())
        os._exit(128 + signal.SIGINT)

    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have it ignored
    if is_ours:
        signal.signal(signal.SIGINT, stop)
    main = importlib.import_module(module).main
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main())


def nodectl() -> int:
    """The command ``nodectl``."""
    return start("nodectl", "nodectl.cli")
