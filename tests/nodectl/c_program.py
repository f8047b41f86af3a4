"""A program in C that calls one of the headers for applications from five places at once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

HEADERS: Final = Path(__file__).parents[2] / "nodectl" / "include"

MAIN: Final = """
#include <pthread.h>
#include <sys/wait.h>
#include "%(header)s"

static void *work(void *times)
{
    for (long i = 0; i < *(long *)times; i++) {
        %(each)s
    }
    return times;
}

/* Four threads here and one in a child, each doing it as often as the argument says. */
int main(int count, char **words)
{
    long times = count > 1 ? atol(words[1]) : 1;
    pthread_t threads[4];

    %(first)s
    pid_t child = fork();
    if (child == 0) {
        work(&times);
        _exit(0);
    }
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, &times);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    waitpid(child, NULL, 0);
    return 0;
}
"""


def compiled(place: Path, header: str, first: str, each: str, *dialect: str) -> Path:
    """The program, made in the folder ``place``: ``first`` once, ``each`` in a loop. ``dialect``: flags of the
    compiler; no warning is let pass."""
    (place / "app.c").write_text(MAIN % {"header": header, "first": first, "each": each})
    flags = [*dialect, "-Wall", "-Wextra", "-Wshadow", "-Werror", "-O2", "-pthread"]
    subprocess.run(["cc", *flags, f"-I{HEADERS}", place / "app.c", "-o", place / "app"], check=True)
    return place / "app"
