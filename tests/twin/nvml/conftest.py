"""Emulated GPUs filled in by hand, so that the library is tested without the model that normally publishes them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi
import pytest

from tests.waiting import PATIENCE_S
from twin.nvml import build

pynvml: Any = pytest.importorskip("pynvml", reason="nvidia-ml-py is missing: install it (pip install nvidia-ml-py)")

HEADER = Path(build.__file__).parent.parent / "csrc" / "twin_gpu.h"
LADDER_15_MHZ = list(range(1410, 195, -15))  # A100: 1410 down to 210
LADDER_7_MHZ = [(3060 - 15 * i) // 2 for i in range(187)]  # V100: 1530 down to 135 in steps of 7.5, shown cut


def publish(gpu: Any, **state: Any) -> None:
    """Write state fields as the model does: the sequence is odd meanwhile."""
    gpu.seq += 1
    for field, value in state.items():
        setattr(gpu, field, value)
    gpu.seq += 1


def parse_header() -> cffi.FFI:
    """The shared structures as the header itself declares them: constants substituted, other directives dropped."""
    text = HEADER.read_text()
    for name, value in re.findall(r"#define (\w+) +(\d+)\b", text):
        text = re.sub(rf"\[{name}\]", f"[{value}]", text)
    ffi = cffi.FFI()
    ffi.cdef(re.sub(r"^#.*$", "", text, flags=re.MULTILINE))
    return ffi


FFI = parse_header()


def fill_gpus() -> Any:
    """Three cards at work: 0 an A100 (Ampere), 1 an H100 (Hopper, with GPM), 2 a V100 (Volta) on another NUMA node."""
    gpus: Any = FFI.new("twin_gpus_t *")
    gpus.magic, gpus.version, gpus.n_gpus, gpus.size = 0x4E54474E, 6, 3, FFI.sizeof("twin_gpus_t")
    gpus.driver_cuda, gpus.driver = 12080, b"570.86.15"
    names = (b"NVIDIA A100-SXM4-80GB", b"NVIDIA H100 80GB HBM3", b"Tesla V100-SXM2-16GB")
    for i, (name, ladder, arch, capability, memory_mib) in enumerate(
        zip(
            names,
            (LADDER_15_MHZ, list(range(1980, 330, -15)), LADDER_7_MHZ),
            (7, 9, 5),
            ((8, 0), (9, 0), (7, 0)),
            (81920, 81559, 16384),
            strict=True,
        )
    ):
        gpu = gpus.gpu[i]
        gpu.name = name
        gpu.uuid = b"GPU-00000000-0000-4000-8000-%012d" % i
        gpu.serial = b"132012%07d" % i
        gpu.pci_bus_id = b"00000000:%02X:00.0" % (7 + 0x40 * i)
        gpu.vbios = b"92.00.45.00.03"
        gpu.architecture, (gpu.cuda_major, gpu.cuda_minor) = arch, capability
        gpu.cores, gpu.memory_bus_bits, gpu.memory_mib = 6912, 5120, memory_mib
        gpu.n_clocks = len(ladder)
        for step, mhz in enumerate(ladder):
            gpu.clocks_mhz[step] = mhz
        gpu.memory_clock_mhz = gpu.mem_clock_now_mhz = 1593
        gpu.power_limit_default_mw = gpu.power_limit_max_mw = 400_000
        gpu.power_limit_min_mw = 100_000
        gpu.has_gpm = arch >= 9
        gpu.slowdown_c, gpu.shutdown_c, gpu.node_numa, gpu.pcie_gen, gpu.pcie_width = 89, 92, int(i == 2), 4, 16
        gpu.persistence = 1
        publish(
            gpu,
            time_us=5_000_000,
            energy_uj=12_345_678_901,
            sm_clock_mhz=ladder[0],
            power_mw=251_000,
            power_instant_mw=263_500,
            enforced_limit_mw=400_000,
            temperature_c=61,
            memory_temperature_c=70,
            gpu_pct=97,
            memory_pct=41,
            pcie_tx_kbps=1200,
            pcie_rx_kbps=3400,
            memory_used_mib=1024,
            throttle_reasons=0x4,
            violation_power_us=2_000,
            violation_thermal_us=30,
        )
        for age in range(10):
            sample = gpu.samples[age]
            sample.time_us, sample.power_mw = 4_900_000 + 10_000 * age, 200_000 + age
            sample.gpu_pct, sample.memory_pct, sample.sm_clock_mhz = 90 + age % 5, 40, ladder[0]
        gpu.sample_head = 10
    return gpus


@pytest.fixture(scope="session")
def library_file() -> Path:
    """The library in its place in the package, rebuilt when its sources are newer.

    The place matters: a process resolves the soname to the first copy it has loaded, so all tests share one file.
    """
    folder = Path(build.__file__).parent
    sources = [*folder.glob("*.[ch]"), folder / "build.py", folder / "functions.txt", HEADER]
    target = folder / build.SONAME
    if not target.exists() or target.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        if shutil.which("cc") is None:
            pytest.skip("no C compiler: install gcc")
        build.build(folder)
    return target


@pytest.fixture(scope="session")
def library(library_file: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library_file))
    loaded.twin_nvml_attach.argtypes = [ctypes.c_void_p]
    return loaded


@pytest.fixture
def gpus(library: ctypes.CDLL) -> Iterator[Any]:
    """The three cards, attached in process."""
    filled = fill_gpus()
    assert library.twin_nvml_attach(int(FFI.cast("uintptr_t", filled))) == 0
    yield filled
    library.twin_nvml_set_delay(None)
    library.twin_nvml_attach(None)


@pytest.fixture
def nvml(gpus: Any) -> Iterator[Any]:
    """The real nvidia-ml-py, initialised on the three cards."""
    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


@pytest.fixture
def handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(3)]


@pytest.fixture
def faults() -> Any:
    """Bits of ``twin_gpu_fault`` by name."""
    return SimpleNamespace(
        **{k.removeprefix("TWIN_GPU_"): v for k, v in FFI.typeof("enum twin_gpu_fault").relements.items()}
    )


@pytest.fixture
def readings() -> Any:
    """Bits of ``twin_gpu_reading`` by name."""
    return SimpleNamespace(
        **{k.removeprefix("TWIN_READING_"): v for k, v in FFI.typeof("enum twin_gpu_reading").relements.items()}
    )


@pytest.fixture(name="publish")
def publish_fixture() -> Callable[..., None]:
    return publish


@pytest.fixture
def write_state(tmp_path: Path) -> Callable[[Any], Path]:
    """Put GPUs into the file that ``run_in_node`` shows."""

    def write(gpus: Any) -> Path:
        path = tmp_path / "gpus"
        path.write_bytes(bytes(FFI.buffer(gpus)))
        return path

    return write


@pytest.fixture
def read_state() -> Callable[[Path], Any]:
    """The GPUs in a file, as another process left them."""

    def read(path: Path) -> Any:
        gpus = FFI.new("twin_gpus_t *")
        FFI.memmove(gpus, path.read_bytes(), FFI.sizeof("twin_gpus_t"))
        return gpus

    return read


@pytest.fixture
def cards() -> Any:
    """The three cards, attached to nothing."""
    return fill_gpus()


@pytest.fixture
def run_in_node(library_file: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command where /run/nodectl-twin/gpus is a file of ours and libnvidia-ml.so.1 the twin's.

    The file is ``tmp_path / "gpus"``, written by the test beforehand.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, for a mount namespace with its own /run")
    prepare = 'mount -t tmpfs twin /run && mkdir /run/nodectl-twin && ln -s "$0" /run/nodectl-twin/gpus && exec "$@"'

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", prepare, str(tmp_path / "gpus"), *command],
            env={**os.environ, "LD_LIBRARY_PATH": str(library_file.parent), "TERM": "xterm", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run
