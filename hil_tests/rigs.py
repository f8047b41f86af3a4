"""Every rig there is, in the order of the table's columns."""

from __future__ import annotations

from hil_tests.linux.rig import LinuxRig
from hil_tests.posix_rig import PosixRig
from hil_tests.rig import Rig
from hil_tests.rtl_rigs import Cv32e40pRig, LitexRig, RtlLineRig, VexRiscvRig
from hil_tests.serial_rigs import FpgaRig, QemuRig
from hil_tests.virtual_rigs import InProcessRig, UnicornRig

RIGS: tuple[type[Rig], ...] = (
    InProcessRig,
    PosixRig,
    UnicornRig,
    QemuRig,
    FpgaRig,
    VexRiscvRig,
    Cv32e40pRig,
    RtlLineRig,
    LitexRig,
    LinuxRig,
)
