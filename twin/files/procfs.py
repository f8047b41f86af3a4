"""/proc/cpuinfo and /proc/stat of the emulated node: its processors, their clocks and busy times.

cpuinfo has the x86 format on any host, with one entry per logical CPU. Like the kernel, it omits lines without
information (microcode). Flags are those of such a processor that programs look for; the CPUID instruction
itself still shows the host's processor.

stat has the lines of the emulated CPUs: busy time, all of it as ``user``, and idle time, both since the twin began. If
there is a host, its other lines follow (interrupts, context switches, ``btime``, from which process ages are computed).
Source: Linux arch/x86/kernel/cpu/proc.c, fs/proc/stat.c, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twin.files.sysfs_cpufreq import Policy
from twin.files.sysfs_nodes import Nodes
from twin.machine import Machine
from twin.physics.model import Twin

CPUINFO = "/proc/cpuinfo"
STAT = "/proc/stat"
FILES = (CPUINFO, STAT)
"""The files of /proc that the twin replaces."""

_US_PER_TICK = 10_000  # USER_HZ is 100


@dataclass(frozen=True, slots=True)
class Generation:
    """Properties of a processor generation. Flags as Linux 6.1 names them."""

    flags: str
    cpuid_level: int
    physical_bits: int
    power_management: str = ""


_X86_64 = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid aperfmperf pni pclmulqdq monitor ssse3 "
    "cx16 sse4_1 sse4_2 x2apic popcnt aes xsave avx lahf_lm"
)
_HASWELL_ON = "fsgsbase bmi1 avx2 smep bmi2 erms invpcid fma movbe f16c rdrand abm rdseed adx smap clflushopt xsaveopt"
_INTEL = (
    "acpi ss tm pbe dts arch_perfmon pebs bts est tm2 vmx tsc_deadline_timer epb tsc_adjust dtherm ida arat pln pts"
)
_HWP = "hwp hwp_act_window hwp_epp hwp_pkg_req"
_AVX_512 = "avx512f avx512dq avx512cd avx512bw avx512vl"
_AMD = (
    "mmxext fxsr_opt svm extapic cr8_legacy sse4a misalignsse 3dnowprefetch perfctr_core perfctr_nb mwaitx cpb sha_ni"
)
_AMD_POWER = "ts ttp tm hwpstate cpb eff_freq_ro [13] [14]"

GENERATIONS = {
    ("GenuineIntel", 6, 45): Generation(f"{_X86_64} {_INTEL}", 13, 46),  # Sandy Bridge EP
    ("GenuineIntel", 6, 85): Generation(f"{_X86_64} {_HASWELL_ON} {_INTEL} {_HWP} {_AVX_512}", 22, 46),  # Skylake SP
    ("GenuineIntel", 6, 143): Generation(  # Sapphire Rapids
        f"{_X86_64} {_HASWELL_ON} {_INTEL} {_HWP} {_AVX_512} sha_ni amx_bf16 amx_tile amx_int8", 32, 46
    ),
    ("GenuineIntel", 6, 140): Generation(f"{_X86_64} {_HASWELL_ON} {_INTEL} {_HWP} {_AVX_512} sha_ni", 27, 39),
    ("AuthenticAMD", 23, 49): Generation(f"{_X86_64} {_HASWELL_ON} {_AMD} hw_pstate", 16, 43, _AMD_POWER),  # Zen 2
    ("AuthenticAMD", 25, 17): Generation(
        f"{_X86_64} {_HASWELL_ON} {_AMD} hw_pstate cppc {_AVX_512}", 16, 52, _AMD_POWER
    ),
}
"""By vendor, family and model (CPUID leaf 1)."""

_VENDORS = {
    "GenuineIntel": Generation(f"{_X86_64} {_INTEL}", 13, 46),
    "AuthenticAMD": Generation(f"{_X86_64} {_AMD}", 13, 48, _AMD_POWER),
}
_UNKNOWN = Generation("fpu tsc constant_tsc nonstop_tsc", 1, 48)


def add(nodes: Nodes, twin: Twin, policies: Sequence[Policy], host_stat: Callable[[], str] | None) -> None:
    """Add both files. ``host_stat`` returns the host's /proc/stat, whose lines other than those of CPUs are shown."""
    nodes.file(CPUINFO, _cpuinfo(twin.machine, policies))
    nodes.file(STAT, lambda: _stat(twin, host_stat))


def _cpuinfo(machine: Machine, policies: Sequence[Policy]) -> Callable[[], str]:
    """The show function; all text but the clocks is computed once."""
    heads = [_head(machine, cpu) for cpu in range(machine.cpus)]
    tails = [_tail(machine, cpu) for cpu in range(machine.cpus)]

    def show() -> str:
        clocks = [policy.clock_khz() for policy in policies]
        parts = []
        for cpu, policy in enumerate(machine.policy_of):
            mhz, khz = divmod(clocks[policy], 1000)
            parts += [heads[cpu], f"cpu MHz\t\t: {mhz}.{khz:03d}\n", tails[cpu]]
        return "".join(parts)

    return show


def _head(machine: Machine, cpu: int) -> str:
    return (
        f"processor\t: {cpu}\n"
        f"vendor_id\t: {machine.vendor}\n"
        f"cpu family\t: {machine.cpu_family}\n"
        f"model\t\t: {machine.cpu_model}\n"
        f"model name\t: {machine.model_name}\n"
        f"stepping\t: {machine.cpu_stepping}\n"
    )


def _tail(machine: Machine, cpu: int) -> str:
    vendor = _VENDORS.get(machine.vendor, _UNKNOWN)
    generation = GENERATIONS.get((machine.vendor, machine.cpu_family, machine.cpu_model), vendor)
    bogomips = 2 * machine.tsc_khz // 10  # hundredths; loops_per_jiffy is preset from the TSC (calibrate.c)
    apic = _apic_id(machine, cpu)
    return (
        f"{_cache_size(machine)}"
        f"physical id\t: {machine.package_of[cpu]}\n"
        f"siblings\t: {machine.cores_per_socket * machine.threads_per_core}\n"
        f"core id\t\t: {machine.core_id[cpu]}\n"
        f"cpu cores\t: {machine.cores_per_socket}\n"
        f"apicid\t\t: {apic}\n"
        f"initial apicid\t: {apic}\n"
        "fpu\t\t: yes\n"
        "fpu_exception\t: yes\n"
        f"cpuid level\t: {generation.cpuid_level}\n"
        "wp\t\t: yes\n"
        f"flags\t\t: {generation.flags}\n"
        "bugs\t\t:\n"
        f"bogomips\t: {bogomips // 100}.{bogomips % 100:02d}\n"
        "clflush size\t: 64\n"
        "cache_alignment\t: 64\n"
        f"address sizes\t: {generation.physical_bits} bits physical, 48 bits virtual\n"
        f"power management: {generation.power_management}".rstrip()
        + "\n\n"
    )


def _cache_size(machine: Machine) -> str:
    """The line of the last-level cache on Intel, of the second level on AMD (arch/x86/kernel/cpu/cacheinfo.c)."""
    sizes = {cache.level: cache.kib for cache in machine.memory.caches}
    level = 2 if machine.vendor == "AuthenticAMD" else max(sizes, default=0)
    return f"cache size\t: {sizes[level]} KB\n" if level in sizes else ""


def _apic_id(machine: Machine, cpu: int) -> int:
    """Package, core and thread, each in as many bits as it needs (Intel SDM vol. 3A, hierarchical ID mapping)."""
    thread_bits = (machine.threads_per_core - 1).bit_length()
    core_bits = (machine.cores_per_socket - 1).bit_length()
    core = machine.package_of[cpu] << core_bits | machine.core_id[cpu]
    return core << thread_bits | cpu // machine.cores


def _stat(twin: Twin, host_stat: Callable[[], str] | None) -> str:
    busy_us, idle_us = twin.busy_idle_us()
    rows = [("cpu ", int(busy_us.sum()), int(idle_us.sum()))]
    rows += [(f"cpu{cpu}", int(busy), int(idle)) for cpu, (busy, idle) in enumerate(zip(busy_us, idle_us, strict=True))]
    text = "".join(
        f"{name} {busy // _US_PER_TICK} 0 0 {idle // _US_PER_TICK} 0 0 0 0 0 0\n" for name, busy, idle in rows
    )
    if host_stat is None:
        return text
    return text + "".join(line for line in host_stat().splitlines(keepends=True) if not line.startswith("cpu"))
