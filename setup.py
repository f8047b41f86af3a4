"""Builds the native parts: six cffi modules and the emulated NVML library. Everything else is in pyproject.toml."""

import pathlib
import sys

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))


class BuildNative(build_ext):
    """Builds ``libnvidia-ml.so.1`` beside the extension modules: a plain library, since other programs load it."""

    def run(self) -> None:
        """Build the extensions, then the library."""
        super().run()
        from twin.nvml.build import build

        target = ROOT if self.inplace or self.editable_mode else pathlib.Path(self.build_lib)
        build(target / "twin" / "nvml")


setup(
    cffi_modules=[
        "pmu/build_native.py:ffibuilder",
        "twin/build_model.py:ffibuilder",
        "twin/build_kernel.py:ffibuilder",
        "twin/build_pulp.py:ffibuilder",
        "firmware_bridge/build_firmware.py:ffibuilder",
        "cluster_agent/build_native.py:ffibuilder",
    ],
    cmdclass={"build_ext": BuildNative},
)
