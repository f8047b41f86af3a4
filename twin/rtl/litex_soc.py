"""The LiteX SoC of the rig ``rtl-litex``: writes its Verilog and the C headers that LiteX generates for it.

    python litex_soc.py FOLDER

It is what ``--cpu-type=vexriscv --cpu-variant=imac --timer-uptime --with-watchdog`` builds for a board, with three
differences. Main RAM is outside, on a Wishbone port, where the rig reads and writes it; a second port shows the same
RAM where VexRiscv does not cache it. There is no BIOS: the core starts in RAM. The watchdog resets at once, not after a
second.

It runs in LiteX's own environment (``build.sh litex``), not in ours.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from litex.soc.integration import export
from litex.soc.integration.soc import SoCRegion
from litex.soc.integration.soc_core import SoCCore
from litex.soc.interconnect import wishbone
from migen import ClockDomain, Module, Signal

CLOCK_HZ = 100_000_000
"""As on many boards."""
BAUD = 230_400
RAM_BASE, WINDOW_BASE, RAM_BYTES = 0x4000_0000, 0x8000_0000, 0x10_0000
PINS = [
    ("sys_clk", 0, Pins(1)),
    ("sys_rst", 0, Pins(1)),
    ("serial", 0, Subsignal("tx", Pins(1)), Subsignal("rx", Pins(1))),
]


def build() -> SoCCore:
    """The SoC, complete."""
    platform = SimPlatform("SIM", PINS)
    soc = SoCCore(
        platform,
        CLOCK_HZ,
        cpu_type="vexriscv",
        cpu_variant="imac",
        cpu_reset_address=RAM_BASE,
        uart_baudrate=BAUD,
        timer_uptime=True,
        integrated_sram_size=0,
    )
    clock = Module()
    clock.rst = Signal()
    clock.clock_domains.cd_sys = ClockDomain("sys")
    clock.comb += clock.cd_sys.clk.eq(platform.request("sys_clk"))
    clock.comb += clock.cd_sys.rst.eq(platform.request("sys_rst") | clock.rst)
    soc.submodules.crg = clock
    soc.add_watchdog(reset_delay=1)
    for name, base in (("main_ram", RAM_BASE), ("window", WINDOW_BASE)):
        port = wishbone.Interface(data_width=32, address_width=32, addressing="word")
        soc.bus.add_slave(name, port, SoCRegion(origin=base, size=RAM_BYTES, cached=name == "main_ram"))
        platform.add_extension(port.get_ios(name))
        soc.comb += port.connect_to_pads(platform.request(name), mode="master")
    soc.finalize()
    return soc


def main(folder: Path) -> None:
    """Writes all files."""
    soc = build()
    os.chdir(folder)
    soc.platform.get_verilog(soc, name="litex", regular_comb=False).write("litex.v")
    regions = soc.mem_regions
    Path("csr.h").write_text(
        export.get_csr_header(soc.csr_regions, soc.constants, regions["csr"].origin, with_access_functions=False)
    )
    Path("soc.h").write_text(export.get_soc_header(soc.constants, with_access_functions=False))
    Path("mem.h").write_text(export.get_mem_header(regions))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
