"""Builds the native parts: seven cffi modules, the emulated NVML library, the library that an emulated node's programs
preload, the ControlPULP process, its plant, the restorer, the hook of Slurm, and the kernels of calibration.

Everything else is in pyproject.toml.
"""

import pathlib
import sys

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))


class BuildWithUnits(build_py):
    """Takes the systemd units into the package, where `nodectl install-service` finds them."""

    def run(self) -> None:
        """Copy the modules, then the units."""
        super().run()
        if not self.editable_mode:
            target = pathlib.Path(self.build_lib) / "nodectl" / "systemd"
            self.mkpath(str(target))
            for name in ("*.service", "*.socket", "*.timer", "*.conf", "*.sysusers"):
                for unit in (ROOT / "systemd").glob(name):
                    self.copy_file(str(unit), str(target / unit.name))


class BuildNative(build_ext):
    """Builds also what is no extension module: a library that other programs load, a program, and its plant."""

    def run(self) -> None:
        """Build the extensions, then the rest."""
        super().run()
        import calibration.kernels.build_kernels
        import cluster_agent.hook.build_hook
        import firmware_bridge.build_posix
        import nodectl.build_restorer
        import twin.build_preload
        import twin.nvml.build
        import twin.pulp.build

        target = ROOT if self.inplace or self.editable_mode else pathlib.Path(self.build_lib)
        twin.nvml.build.build(target / "twin" / "nvml")
        twin.build_preload.build(target / "twin")
        twin.pulp.build.build(target / "twin" / "pulp")
        firmware_bridge.build_posix.build(target / firmware_bridge.build_posix.PROGRAM)
        calibration.kernels.build_kernels.build(
            target / "calibration" / "kernels" / calibration.kernels.build_kernels.PROGRAM
        )
        cluster_agent.hook.build_hook.build(target / "cluster_agent" / "hook" / cluster_agent.hook.build_hook.PROGRAM)
        nodectl.build_restorer.build(target / "nodectl" / nodectl.build_restorer.PROGRAM)


setup(
    cffi_modules=[
        "pmu/build_native.py:ffibuilder",
        "nodectl/build_progress.py:ffibuilder",
        "twin/build_model.py:ffibuilder",
        "twin/build_serve.py:ffibuilder",
        "twin/build_pulp.py:ffibuilder",
        "firmware_bridge/build_firmware.py:ffibuilder",
        "cluster_agent/build_native.py:ffibuilder",
    ],
    data_files=[
        *((f"share/man/man{n}", sorted(map(str, pathlib.Path("docs/man").glob(f"*.{n}")))) for n in (1, 5)),
        *(
            (f"share/clusterctl/{name}", sorted(map(str, pathlib.Path("docs/monitoring", name).glob("*"))))
            for name in ("grafana", "prometheus")
        ),
    ],
    cmdclass={"build_ext": BuildNative, "build_py": BuildWithUnits},
)
