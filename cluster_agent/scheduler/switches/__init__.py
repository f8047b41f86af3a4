"""What a site adds to its processors: partitions, memory, limits of what users and queues may run at once, failures,
reservations, windows of queues, best-effort jobs.

Each is a switch of the world, and counts how many jobs it changed. Imports ``scheduler`` alone.
"""

from typing import Final

OPTIONS: Final = {
    "limits": "--limit",
    "partitions": "--partitions",
    "memory": "--memory",
    "failures": "--failures",
    "reservations": "--reservations",
    "windows": "--windows",
    "best_effort": "--best-effort",
}
"""Each by its name in a world and in ``manifest.json``, and the option that gives it."""
