"""The library before the CUDA driver, against a stub of the driver: by each of the ways that programs come to it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nodectl.jobs.hint_page import make_hint_page
from pmu.instruments.job_hints import HintFile
from pmu.readings import Hint
from tests.nodectl.c_program import HEADERS

ME = os.geteuid()

STUB = """
#include <stdint.h>
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
#define COPY(name, by) int name(uint64_t d, const void *s, uint64_t n) \\
    { return (d == 1) + (s == (void *)2) + (n == 10000000000) + by; }
COPY(cuMemcpyHtoD_v2, 10) COPY(cuMemcpyHtoD_v2_ptds, 20) COPY(cuMemcpyHtoD_v3, 30)
int cuMemcpyDtoHAsync_v2(void *d, uint64_t s, uint64_t n, void *on) { return (d && s && on) ? (int)(n / 1000) : 1; }
#define KERNEL(name, by) int name(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, \\
    unsigned bytes, void *stream, void **p, void **extra) \\
    { return a + b + c + d + e + g + bytes + by + (f == p) + (stream == extra); }
KERNEL(cuLaunchKernel, 100) KERNEL(cuLaunchKernel_ptsz, 200)
int cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status)
{
    *status = 0;
    *f = !strcmp(name, "cuInit")         ? (void *)cuInit
       : !strcmp(name, "cuLaunchKernel") ? (flags & 2 ? (void *)cuLaunchKernel_ptsz : (void *)cuLaunchKernel)
       : !strcmp(name, "cuMemcpyHtoD")   ? (version >= 13000 ? (void *)cuMemcpyHtoD_v3 :
                                            flags & 2 ? (void *)cuMemcpyHtoD_v2_ptds : (void *)cuMemcpyHtoD_v2)
       : !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : 0;
    return *f ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **f, int version, uint64_t flags)
{ int status; return cuGetProcAddress_v2(name, f, version, flags, &status); }
"""

HEAD = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
typedef int copy_t(uint64_t, const void *, uint64_t);
typedef int kernel_t(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                     void **);
typedef int ask_t(const char *, void **, int, uint64_t, int *);
#define BIG 10000000000
#define NEED(one) if (!(one)) { printf("%d: " #one "\\n", __LINE__); return 1; }
static int launch(kernel_t *kernel) { return kernel(0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0); }
"""

LINKED = (
    HEAD
    + """
copy_t cuMemcpyHtoD_v2;
kernel_t cuLaunchKernel;
int cuMemcpyDtoHAsync_v2(void *, uint64_t, uint64_t, void *);
int main(void)
{
    NEED(cuMemcpyHtoD_v2(1, (void *)2, BIG) == 13)
    NEED(cuMemcpyHtoD_v2(1, (void *)2, BIG - 1) == 12)
    NEED(launch(cuLaunchKernel) == 130)
    NEED(cuMemcpyDtoHAsync_v2("", 1, BIG, "") == 10000000)
    return 0;
}
"""
)

RUNTIME = (
    HEAD
    + """
int main(int count, char **words)
{
    void *driver = dlopen(words[count - 1], RTLD_NOW | RTLD_LOCAL), *f;
    ask_t *ask = (ask_t *)dlsym(driver, "cuGetProcAddress_v2"), *again;
    int status;
    NEED(ask)
    NEED(ask("cuGetProcAddress", &f, 12000, 2, &status) == 0)
    again = (ask_t *)f;
    NEED(again("cuInit", &f, 12000, 0, &status) == 0 && f == dlsym(driver, "cuInit"))
    NEED(again("cuNothing", &f, 12000, 0, &status) == 500 && f == 0)
    NEED(again("cuLaunchKernel", &f, 12000, 2, &status) == 0 && launch((kernel_t *)f) == 230)
    NEED(again("cuLaunchKernel", &f, 12000, 0, &status) == 0 && launch((kernel_t *)f) == 130)
    NEED(again("cuMemcpyHtoD", &f, 12000, 0, &status) == 0 && ((copy_t *)f)(1, (void *)2, BIG) == 13)
    NEED(again("cuMemcpyHtoD", &f, 13000, 0, &status) == 0 && ((copy_t *)f)(1, (void *)2, BIG) == 33)
    NEED(launch((kernel_t *)dlsym(driver, "cuLaunchKernel")) == 130)
    NEED(dlsym(driver, "nothing") == 0 && dlsym(RTLD_DEFAULT, "puts") != 0)
    return 0;
}
"""
)

LOADED = """
#include <dlfcn.h>
int main(int count, char **words)
{
    void *module = dlopen(words[count - 1], RTLD_NOW | RTLD_LOCAL);
    int (*function)(void) = module ? (int (*)(void))dlsym(module, "of_module") : 0;
    return function ? function() : 9;
}
"""

MODULE = """
int cuMemcpyHtoD_v2(unsigned long, const void *, unsigned long);
int of_module(void) { return cuMemcpyHtoD_v2(1, (void *)2, 10000000000) != 13; }
"""

OTHER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int puts(const char *line)
{
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "puts");
    return next == puts || next == NULL ? -9 : next(line);
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as docs/hints.md builds it, a stub of libcuda, and programs."""
    at = tmp_path_factory.mktemp("cuda")
    for name, text in (("stub", STUB), ("linked", LINKED), ("runtime", RUNTIME), ("other", OTHER)):
        (at / f"{name}.c").write_text(text)
    shared = ("-O2", "-shared", "-fPIC", "-o")
    cc(*shared, at / "libnodectl_cuda.so", f"-I{HEADERS}", HEADERS / "nodectl_cuda.c", "-ldl")
    own = ("-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")  # as the driver calls its own functions
    cc(*shared, at / "libcuda.so", at / "stub.c", *own)
    (at / "libcuda.so.1").symlink_to("libcuda.so")
    cc(*shared, at / "other.so", at / "other.c", "-ldl")
    cc("-o", at / "linked", at / "linked.c", f"-L{at}", "-lcuda", f"-Wl,-rpath,{at}")
    cc("-o", at / "runtime", at / "runtime.c", "-ldl")
    return at


def cc(*words: str | Path) -> None:
    subprocess.run(["cc", *words], check=True)


def run(place: Path, page: Path | None, *command: str | Path, more: str = "") -> str:
    environment = {"LD_PRELOAD": f"{place}/libnodectl_cuda.so{more}"}
    environment |= {"NODECTL_HINTS": str(page)} if page else {}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.fixture
def page(tmp_path: Path) -> Path:
    made = tmp_path / "hints"
    make_hint_page(made)
    return made


def test_a_program_that_is_linked_with_the_driver_gives_hints(place: Path, page: Path) -> None:
    run(place, page, place / "linked")
    found = HintFile(page, ME).read(1)
    assert (found.copies, found.kernels, found.last) == (2, 1, Hint.COPY), "a copy below 10^10 bytes is none"
    run(place, None, place / "linked")


def test_a_runtime_inside_the_program_is_seen_though_it_asks_the_driver_itself(place: Path, page: Path) -> None:
    """By dlsym and cuGetProcAddress, each variant with its own function; a later version of one stays the driver's."""
    run(place, page, place / "runtime", place / "libcuda.so")
    found = HintFile(page, ME).read(1)
    assert (found.copies, found.kernels, found.last) == (1, 3, Hint.KERNEL)


def test_a_driver_that_a_module_has_for_itself_is_found(place: Path, page: Path, tmp_path: Path) -> None:
    """As Python loads the modules of its packages."""
    (tmp_path / "app.c").write_text(LOADED)
    (tmp_path / "module.c").write_text(MODULE)
    cc("-o", tmp_path / "app", tmp_path / "app.c", "-ldl")
    module = tmp_path / "module.so"
    cc("-shared", "-fPIC", "-o", module, tmp_path / "module.c", f"-L{place}", "-lcuda", f"-Wl,-rpath,{place}")
    run(place, page, tmp_path / "app", module)
    assert HintFile(page, ME).read(1).copies == 1


@pytest.mark.parametrize("is_first", [False, True])
def test_another_library_before_the_program_still_finds_the_next_one(
    place: Path, is_first: bool, tmp_path: Path
) -> None:
    """RTLD_NEXT depends on who asks, so a dlsym of ours must not ask in its place."""
    (tmp_path / "app.c").write_text('#include <stdio.h>\nint main(void) { return puts("said") < 0; }\n')
    cc("-fno-builtin", "-o", tmp_path / "app", tmp_path / "app.c")
    environment = [f"{place}/libnodectl_cuda.so", f"{place}/other.so"][:: -1 if is_first else 1]
    done = subprocess.run(
        [tmp_path / "app"], env={"LD_PRELOAD": ":".join(environment)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "said\n")


def test_without_a_driver_a_call_fails_as_the_driver_would(place: Path, tmp_path: Path) -> None:
    source = "int cuGraphLaunch(void *, void *);\nint main(void) { return cuGraphLaunch(0, 0) != 500; }\n"
    (tmp_path / "app.c").write_text(source)
    cc("-o", tmp_path / "app", tmp_path / "app.c", f"-L{place}", "-lnodectl_cuda", f"-Wl,-rpath,{place}")
    assert run(place, None, tmp_path / "app") == ""
