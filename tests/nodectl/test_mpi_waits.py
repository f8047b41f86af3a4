"""Waits in MPI: the library before MPI (against a stub of ours and against Debian's Open MPI), what the page then says,
and the clocks that follow from it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nodectl.jobs.hint_page import make_hint_page
from nodectl.policies import mpi_waits
from nodectl.policies.mpi_waits import FREE, NO_HINT, WAITS, Params
from pmu.decode import decode
from pmu.instruments.job_hints import HintFile
from pmu.readings import NO_HINTS, Hint, HintSample, Quality, RawHints
from tests.nodectl.c_program import HEADERS
from tests.pmu.test_decode import LAYOUT, first, later

ME = os.geteuid()
ROOT = Path(__file__).parents[2]
OPEN_MPI = ROOT / "build" / "openmpi"

STUB = """
#define _DEFAULT_SOURCE
#include <unistd.h>
int MPI_Barrier(unsigned us) { return usleep(us); }
int PMPI_Barrier(unsigned us) { return usleep(us); }
int MPI_Allreduce(long a, long b, long c, long d, long e, long f) { MPI_Barrier(0); return a + b + c + d + e + f; }
int MPI_Sendrecv(const void *a, int b, long c, int d, int e, void *f, int g, long h, int i, int j, int k, void *l)
{ return *(const int *)a + b + c + d + e + *(int *)f + g + h + i + j + k + *(int *)l; }
void mpi_sendrecv_(int *a, int *b, int *c, int *d, int *e, int *f, int *g, int *h, int *i, int *j, int *k, int *l,
                   int *m)
{ *m = *a + *b + *c + *d + *e + *f + *g + *h + *i + *j + *k + *l; }
int MPI_Init(void) { return 0; }
"""

PROGRAM = """
#include <stdlib.h>
int MPI_Init(void), MPI_Barrier(unsigned), MPI_Allreduce(long, long, long, long, long, long);
int MPI_Sendrecv(const void *, int, long, int, int, void *, int, long, int, int, int, void *);
void mpi_sendrecv_(int *, int *, int *, int *, int *, int *, int *, int *, int *, int *, int *, int *, int *);
int main(int count, char **words)
{
    int a[13];
    if (count > 1)
        return MPI_Barrier((unsigned)atoi(words[1]));
    for (int i = 0; i < 13; i++)
        a[i] = 1 << i;
    mpi_sendrecv_(a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, a + 10, a + 11, a + 12);
    return MPI_Init() || MPI_Allreduce(1, 2, 4, 8, 16, 32) != 63 || a[12] != 4095 ||
           MPI_Sendrecv(a, 2, 4L << 32 | 4, 8, 16, a + 5, 64, 128, 256, 512, -1024, a + 11) != 4095 - 2048;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As docs/hints.md builds it."""
    made = tmp_path_factory.mktemp("mpi") / "libnodectl_mpi.so"
    cc("-O2", "-shared", "-fPIC", "-o", made, f"-I{HEADERS}", HEADERS / "nodectl_mpi.c", "-ldl")
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "hints"
    make_hint_page(made)
    return made


def cc(*words: str | Path) -> None:
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", *words], check=True)


@pytest.fixture(scope="module")
def program(library: Path) -> Path:
    """Next to a stub of libmpi."""
    at = library.parent
    (at / "stub.c").write_text(STUB)
    (at / "app.c").write_text(PROGRAM)
    cc("-shared", "-fPIC", "-o", at / "libmpi.so", at / "stub.c")
    cc("-o", at / "app", at / "app.c", f"-L{at}", "-lmpi", f"-Wl,-rpath,{at}")
    return at / "app"


def run(library: Path, path: Path | None, *command: str | Path, **more: str) -> None:
    environment = os.environ | {"LD_PRELOAD": str(library)} | ({"NODECTL_HINTS": str(path)} if path else {}) | more
    subprocess.run(command, env=environment, check=True, timeout=120)


def test_each_call_comes_through_as_it_was_and_is_one_wait(library: Path, program: Path, path: Path) -> None:
    run(library, path, program)
    found = HintFile(path, ME).read(1)
    assert (found.waits, found.waited, found.news) == (3, 3, 0), "a call inside another one is not counted again"
    run(library, None, program)
    run(library, path.with_name("none"), program)


def test_a_long_wait_wakes_the_agent_when_it_ends_and_a_short_one_does_not(
    library: Path, program: Path, path: Path
) -> None:
    run(library, path, program, "100")
    assert HintFile(path, ME).read(1).news == 0
    run(library, path, program, "5000")
    found = HintFile(path, ME).read(1)
    assert (found.news, found.waits, found.waited) == (1, 2, 2)


LOADED = """
#include <dlfcn.h>
#include <stdlib.h>
int main(int count, char **words)
{
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
    int (*function)(long) = (int (*)(long))dlsym(library, count > 1 ? "of_module" : "MPI_Barrier");
    return function ? function(0) : 9;
}
"""


def test_mpi_that_a_module_has_for_itself_is_found(library: Path, program: Path, path: Path, tmp_path: Path) -> None:
    """As mpi4py has it in Python."""
    (tmp_path / "app.c").write_text(LOADED)
    (tmp_path / "module.c").write_text(
        "int MPI_Barrier(unsigned); int of_module(long us) { return MPI_Barrier((unsigned)us); }"
    )
    at = program.parent
    cc("-o", tmp_path / "app", tmp_path / "app.c", "-ldl")
    cc("-shared", "-fPIC", "-o", tmp_path / "module.so", tmp_path / "module.c", f"-L{at}", "-lmpi", f"-Wl,-rpath,{at}")
    run(library, path, tmp_path / "app", tmp_path / "module.so")
    assert HintFile(path, ME).read(1).waited == 1
    done = subprocess.run(
        [tmp_path / "app"], env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False
    )
    assert done.returncode < 0
    assert done.stderr == "nodectl_mpi: no library after this one has MPI_Barrier\n"


REAL = """
#include <stdlib.h>
#include <unistd.h>
extern char ompi_mpi_comm_world[];
int MPI_Init(int *, char ***), MPI_Finalize(void), MPI_Comm_rank(void *, int *), MPI_Barrier(void *);
int main(void)
{
    int rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(ompi_mpi_comm_world, &rank);
    for (int i = 0; i < 10; i++) {
        if (rank == 0)
            usleep(10000);
        MPI_Barrier(ompi_mpi_comm_world);
    }
    return MPI_Finalize();
}
"""


@pytest.mark.skipif(
    not (OPEN_MPI / "complete").exists(), reason="Debian's Open MPI could not be had: scripts/openmpi.sh"
)
def test_the_ranks_of_open_mpi_wait_on_the_page(library: Path, path: Path, tmp_path: Path) -> None:
    """Debian's own, unpacked: one rank is 10 ms late ten times, and the other waits for it."""
    root = OPEN_MPI / "root"
    usr, libraries = root / "usr", root / "usr" / "lib" / "x86_64-linux-gnu"
    here = {
        "OPAL_PREFIX": usr, "OPAL_LIBDIR": libraries / "openmpi/lib", "OPAL_DATADIR": usr / "share",
        "OPAL_PKGLIBDIR": libraries / "openmpi/lib/openmpi3", "OPAL_PKGDATADIR": usr / "share/openmpi",
        "OPAL_SYSCONFDIR": root / "etc/openmpi", "LD_LIBRARY_PATH": f"{libraries}:{libraries}/openmpi/lib",
        "PATH": f"{usr}/bin:{os.environ['PATH']}",
    }  # fmt: skip
    (tmp_path / "app.c").write_text(REAL)
    lazily = "-Wl,--unresolved-symbols=ignore-in-shared-libs"
    cc("-o", tmp_path / "app", tmp_path / "app.c", f"-L{libraries}", "-l:libmpi.so.40", lazily)
    mpirun = [usr / "bin" / "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    run(library, path, *mpirun, tmp_path / "app", **{name: str(value) for name, value in here.items()})
    found = HintFile(path, ME).read(1)
    assert found.waits == found.waited == 20
    assert 8 <= found.news <= 20, "of ten waits of 10 ms, and of those that this machine made long"


# --- clocks ---


def waiting(before: tuple[int, int], now: tuple[int, int]) -> HintSample:
    """``waits`` and ``waited`` at the two ends of an interval."""
    raws = [RawHints(1, 0, 0, Hint.NONE, 0, 1, *counts, 0) for counts in (before, now)]
    begin = first()
    return decode(LAYOUT, replace(begin, hints=raws[0]), replace(later(begin), hints=raws[1])).hints


@pytest.mark.parametrize(
    ("before", "now", "waited_through"),
    [
        ((4, 0), (4, 0), 4),  # nothing happened: all four waited through it
        ((4, 0), (4, 1), 3),
        ((4, 0), (9, 5), 0),  # five ended: perhaps those that began meanwhile, perhaps all four
        ((4, 4), (8, 4), 0),  # they began in the interval
        ((4, 5), (4, 5), 0),  # a thread between its two additions
    ],
)
def test_only_what_waited_through_a_whole_interval_counts(
    before: tuple[int, int], now: tuple[int, int], waited_through: int
) -> None:
    assert waiting(before, now).waiting == waited_through


def ask(hints: HintSample, busy: list[float]) -> tuple[list[int], int]:
    begin = first()
    layout, seen = LAYOUT, decode(LAYOUT, begin, later(begin))
    seen = replace(seen, hints=hints, cpu=replace(seen.cpu, busy=np.array(busy)))
    _, request = mpi_waits.decide(Params(), layout, mpi_waits.initial(Params(), layout), seen)
    (reason,) = set(request.reason.tolist())
    return request.target.tolist(), reason


def test_ranks_that_were_killed_in_a_call_do_not_explain_the_next_ones_for_ever() -> None:
    begin, n_cpus = first(), len(LAYOUT.cpus)
    seen = decode(LAYOUT, begin, later(begin))
    seen = replace(seen, elapsed_s=1.0, cpu=replace(seen.cpu, busy=np.ones(n_cpus)))
    state, reasons = mpi_waits.initial(Params(), LAYOUT), []

    def decides(before: tuple[int, int], now: tuple[int, int]) -> int:
        nonlocal state
        state, request = mpi_waits.decide(Params(), LAYOUT, state, replace(seen, hints=waiting(before, now)))
        return int(request.reason[0])

    dead = (n_cpus, 0)
    reasons = [decides(dead, dead) for _ in range(12)]
    assert reasons == [WAITS] * 9 + [FREE] * 3
    for step in range(0, 30 * n_cpus, n_cpus):  # the next mpirun: all wait shortly, then all compute
        more, most = (n_cpus + step, step), (2 * n_cpus + step, step + n_cpus)
        assert decides(more, most) == decides(most, most) == FREE
    ended = (most[0], most[0])
    decides(most, ended)
    again = (ended[0] + n_cpus, ended[1])
    assert (decides(ended, again), decides(again, again)) == (FREE, WAITS), "they lived, and wait again"


def test_clocks_fall_only_while_every_busy_cpu_waits() -> None:
    n_cpus = len(LAYOUT.cpus)
    hinted = HintSample(Hint.NONE, 0, 0, 0, 0, n_cpus, Quality.MEASURED)
    target, reason = ask(hinted, [1.0] * n_cpus)
    assert reason == WAITS
    assert all(target[cpu] == domain.min_khz for domain in LAYOUT.domains for cpu in domain.cpus)
    one_less = replace(hinted, waiting=n_cpus - 1)
    assert ask(one_less, [1.0] * n_cpus) == ([0] * n_cpus, FREE), "one computes"
    assert ask(one_less, [*[1.0] * (n_cpus - 1), 0.05])[1] == WAITS, "an idle one computes nothing"
    assert ask(one_less, [*[1.0] * (n_cpus - 1), float("nan")])[1] == FREE, "nobody knows what it does"
    assert ask(replace(hinted, waiting=0), [0.0] * n_cpus)[1] == FREE
    for other in (NO_HINTS, replace(hinted, quality=Quality.CLIPPED)):
        assert ask(other, [1.0] * n_cpus) == ([0] * n_cpus, NO_HINT)
