"""Kernels on this machine's own CPUs: what they compute is known, and nothing of them is left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from calibration.kernels import native
from calibration.kernels.build_kernels import ROOT, build
from calibration.kernels.native import NativeKernels
from calibration.kernels.port import CHASE, FMA, KERNELS, STREAM, Kernel, KernelError, mix, running
from pmu.system import system_ports
from tests.calibration.kernel_processes import kernel_processes
from tests.waiting import PATIENCE_S, within

FILES = system_ports().files
CPUS = sorted(os.sched_getaffinity(0))
SMALL_B = 1 << 20
"""Enough for results; speeds need more."""

WIDTHS = NativeKernels(FILES).widths()
ALL = (*KERNELS, mix(0.25), mix(1.25), mix(64.0))


def ran(kernel: Kernel, width: str = "", program: Path = native.PROGRAM, blocks: int = 20) -> float:
    """Units of a run of some blocks, whose result was verified."""
    port = NativeKernels(FILES, width, SMALL_B, program)
    with running(port, kernel, CPUS[:1]):
        assert within(PATIENCE_S, lambda: port.units_done() > blocks * 1000)
    return port.units_done()


# ---- what comes out


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: f"{kernel.name}-{kernel.flops_per_byte:g}")
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_of_this_cpu_verifies_the_same_known_results(kernel: Kernel, width: str) -> None:
    assert ran(kernel, width) > 0


def test_the_widest_vectors_are_the_default_and_others_must_be_there() -> None:
    assert WIDTHS[0] == "scalar"
    with pytest.raises(KernelError, match="no vectors of this width: mmx"):
        NativeKernels(FILES, "mmx").start(FMA, CPUS[:1])


def ratio(x: float) -> tuple[int, int]:
    """Numerator, and the power of 2 that is the denominator."""
    above, below = x.as_integer_ratio()
    return above, below.bit_length() - 1


def multiplied_and_added(x: float, by: float, more: float, is_fused: bool) -> float:
    """In whole numbers, rounded once or twice; Python's quotient of whole numbers is rounded correctly."""
    (above, power), (by_above, by_power) = ratio(x), ratio(by)
    above, power = above * by_above, power + by_power
    if not is_fused:
        above, power = ratio(above / (1 << power))
    more_above, more_power = ratio(more)
    common = max(power, more_power)
    return ((above << common - power) + (more_above << common - more_power)) / (1 << common)


def mixed(index: int) -> int:
    """splitmix64."""
    mask = (1 << 64) - 1
    z = (index + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def seed(chain: int) -> float:
    """In [1, 2): the upper bits as mantissa."""
    return float(struct.unpack("<d", struct.pack("<Q", mixed(chain) >> 12 | 0x3FF << 52))[0])


def constants() -> list[float]:
    """Factor and summand of the two kinds of steps."""
    header = (ROOT / "csrc" / "kernels.h").read_text()
    names = ("UP_BY", "UP", "DOWN_BY", "DOWN")
    return [float(re.findall(rf"#define {name} \(?(-?[0-9.]+)", header)[0]) for name in names]


@pytest.mark.parametrize("is_fused", [False, True])
def test_the_known_ends_of_the_chains_follow_from_exact_arithmetic(is_fused: bool) -> None:
    header, source = ((ROOT / "csrc" / name).read_text() for name in ("kernels.h", "numbers.c"))
    up_by, up, down_by, down = constants()
    steps = int(re.search(r"STEPS = (\d+)", header)[1])  # type: ignore[index]
    known = [int(word, 16) for word in re.findall(r"0x3FF[0-9A-F]{13}(?=[,}])", source)]
    assert len(known) == 32
    for chain in (0, 7, 11, 15):
        x = seed(chain)
        for step in range(steps):
            x = multiplied_and_added(x, *((down_by, down) if step % 2 else (up_by, up)), is_fused)
        assert struct.unpack("<Q", struct.pack("<d", x))[0] == known[16 * is_fused + chain]


def test_an_error_of_a_chain_stays_as_often_as_the_page_says() -> None:
    """Halfway, in every chain; 13 % of errors of one unit in the last place are rounded away, 0.03 % of larger ones."""
    up_by, up, down_by, down = constants()

    def after(x: np.ndarray, steps: int) -> np.ndarray:
        for _ in range(steps // 2):
            x = (x * up_by + up) * down_by + down
        return x

    chains = np.array([seed(chain) for chain in range(4000)])
    half = after(chains, 8192)
    missed = {ulps: np.mean(after(half + ulps * 2.0**-52, 8192) == after(half, 8192)) for ulps in (1, 2, 4, 16, 1024)}
    assert missed.pop(1) == pytest.approx(0.13, abs=0.01)
    assert max(missed.values()) <= 0.0003


def mutant(folder: Path, name: str, what: str, instead: str) -> Path:
    """The program with one place of its source changed."""
    sources = shutil.copytree(ROOT / "csrc", folder / "csrc")
    text = (sources / name).read_text()
    assert text.count(what) == 1, text.count(what)
    (sources / name).write_text(text.replace(what, instead))
    return build(folder / "nodectl-kernels", sources)


TRIAD = "worker->loops->triad("
TICK = "    worker->place += CHUNK;"
MUTANTS = {
    "a known end of a chain": (FMA, "numbers.c", "0x3FFE220A8397F1DC", "0x3FFE220A8397F1DF"),
    "a factor": (FMA, "kernels.h", "DOWN_BY 0.6180339887498949", "DOWN_BY 0.6180339887498947"),
    "a number of a triad": (STREAM, "stream.c", TICK, "    x[at] += pass == 3 && at == 8192;\n" + TICK),
    "a chunk of a triad left out": (STREAM, "stream.c", TRIAD, "if (at || pass != 3) " + TRIAD),
    "the order of a chase": (CHASE, "chase.c", "= line(worker, k + 1)", "= line(worker, k == 77 ? 0 : k + 1)"),
    "some loads too few": (CHASE, "chase.c", "int i = 0; i < LOADS;", "int i = 8; i < LOADS;"),
    "a bit of a mix": (mix(1.0), "mix.c", "memory = x;", "memory = x, x[n - 1] *= 1 + 0x1p-52;"),
    "the steps of a mix": (mix(1.0), "vector_loops.h", "pair < steps / 2", "pair < steps / 2 + (i == 8192)"),
}
"""Defects in constants, data and loops, each of which makes a result wrong. Those of the triad are in one pass alone:
in each of them, they would cancel every six passes, and a run may end there."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_result_is_an_error_of_the_cpu(name: str, tmp_path: Path) -> None:
    kernel, *change = MUTANTS[name]
    with pytest.raises(KernelError, match=f"^CPU {CPUS[0]} computed wrongly: ") as caught:
        ran(kernel, "scalar", mutant(tmp_path, *change), 10_000)
    assert "\n" not in str(caught.value)


# ---- units


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_units_never_fall_and_stay_after_the_end(kernel: Kernel) -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    assert port.units_done() == 0.0
    seen = []
    with running(port, kernel, CPUS[:2]):
        for _ in range(200):
            seen.append(port.units_done())
            time.sleep(0.001)
    assert (np.diff(seen) >= 0).all()
    assert port.units_done() >= seen[-1] > 0


def test_each_kernel_counts_from_its_own_start() -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    with running(port, FMA, CPUS[:1]):
        assert within(PATIENCE_S, lambda: port.units_done() > 1e9)
    with running(port, CHASE, CPUS[:1]):
        assert port.units_done() < 1e9


def test_a_multiply_add_is_two_flops_and_blocks_are_whole() -> None:
    steps = 16384
    chains, lanes = {"scalar": (12, 1), "avx2": (12, 4), "avx512": (16, 8), "neon": (16, 2)}[WIDTHS[-1]]
    assert ran(FMA) % (2 * steps * chains * lanes) == 0


# ---- threads


def test_each_thread_is_pinned_to_its_cpu() -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    with running(port, FMA, CPUS[:2]):
        (process,) = kernel_processes(os.getpid())
        affinities = [os.sched_getaffinity(thread.id) for thread in process.threads() if thread.id != process.pid]
    assert sorted(map(sorted, affinities)) == [[cpu] for cpu in CPUS[:2]]


def test_memory_is_above_the_share_of_the_last_level_cache() -> None:
    caches = [text for cpu in CPUS for text in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*/size")]
    if not caches:
        pytest.skip("the kernel shows no caches of this machine")
    largest_b = max(int(text.read_text().strip()[:-1]) << 10 for text in caches)
    port = NativeKernels(FILES)
    try:
        port.start(STREAM, CPUS[:1])
    except KernelError as error:
        assert "use fewer CPUs" in str(error)
        return
    (process,) = kernel_processes(os.getpid())
    assert process.memory_info().rss > 11 * largest_b
    port.stop()


@pytest.mark.parametrize(
    ("cpus", "why"), [([], "no CPU"), ([0, 0], "twice"), ([99_999], "99999"), ([-1], "-1")], ids=str
)
def test_bad_lists_of_cpus_are_refused_in_one_line(cpus: list[int], why: str) -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    with pytest.raises(KernelError, match=why):
        port.start(FMA, cpus)
    assert kernel_processes(os.getpid()) == []


def test_the_program_itself_refuses_a_cpu_that_is_not_there() -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, 128)
    reading, writing = os.pipe()  # open for as long as the program runs, else it ends at once
    done = subprocess.run(
        [native.PROGRAM, "fma", "-", "0", "0", str(fd), str(os.getpid()), "1000000"],
        pass_fds=(fd,), capture_output=True, text=True, stdin=reading, timeout=PATIENCE_S,
    )  # fmt: skip
    for each in (fd, reading, writing):
        os.close(each)
    assert (done.returncode, done.stderr) == (1, "CPU 1000000: no thread can run there\n")


def test_more_memory_than_there_is_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MOST_OF_MEMORY", 1e-6)
    with pytest.raises(KernelError, match=r"stream: \d+ MiB are needed"):
        NativeKernels(FILES).start(STREAM, CPUS[:1])
    assert kernel_processes(os.getpid()) == []


# ---- ends


_START = f"""
import os, sys, time
from calibration.kernels.native import NativeKernels
from calibration.kernels.port import FMA
from pmu.system import system_ports
port = NativeKernels(system_ports().files)
port.start(FMA, [{CPUS[0]}])
if len(sys.argv) > 1 and os.fork() == 0:
    time.sleep(600)  # has the other end of the kernel's input
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("has_child", [False, True], ids=["alone", "with a child that keeps the pipe open"])
def test_a_kernel_ends_when_its_parent_is_killed(has_child: bool) -> None:
    words = [sys.executable, "-c", _START, *(["fork"] if has_child else [])]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT.parents[1])
    assert parent.stdout and parent.stdout.readline() == "ready\n"
    others = [child for child in psutil.Process(parent.pid).children() if not child.name().startswith("nodectl-kern")]
    assert len(others) == has_child
    assert len(kernel_processes(parent.pid)) == 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert within(PATIENCE_S, lambda: not kernel_processes(parent.pid))
    for child in others:
        child.kill()
    parent.stdout.close()


def test_a_kernel_ends_by_sigterm_and_the_next_reading_says_so() -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    port.start(FMA, CPUS[:1])
    (process,) = kernel_processes(os.getpid())
    process.terminate()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # until it has ended; its status is left to the port
    with pytest.raises(KernelError, match="SIGTERM"):
        port.units_done()
    with pytest.raises(KernelError, match="SIGTERM"):
        port.stop()
    port.stop()
    with running(port, FMA, CPUS[:1]):  # the next one runs
        assert port.units_done() >= 0


def test_an_error_of_the_caller_leaves_no_process() -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    with pytest.raises(ZeroDivisionError), running(port, CHASE, CPUS[:1]):
        raise ZeroDivisionError
    assert kernel_processes(os.getpid()) == []


def test_a_port_that_is_dropped_leaves_no_process() -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    port.start(FMA, CPUS[:1])
    assert len(kernel_processes(os.getpid())) == 1
    del port
    assert within(PATIENCE_S, lambda: not kernel_processes(os.getpid()))


def test_one_kernel_runs_at_a_time() -> None:
    port = NativeKernels(FILES, memory_b=SMALL_B)
    with running(port, FMA, CPUS[:1]), pytest.raises(KernelError, match="runs already"):
        port.start(CHASE, CPUS[:1])
    assert kernel_processes(os.getpid()) == []
