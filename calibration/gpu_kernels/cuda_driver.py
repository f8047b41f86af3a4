"""CUDA's driver API as far as kernels need it, loaded at run time: a node without NVIDIA's driver has none.

Names with ``_v2`` are those that the headers of CUDA 3.2 and later mean without it; the plain ones take 32-bit sizes.
Source: NVIDIA, CUDA Driver API reference, and cuda.h.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

from calibration.kernels.port import KernelError

LIBRARY: Final = "libcuda.so.1"
MULTIPROCESSORS: Final = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
MAJOR: Final = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
OLDEST_MAJOR: Final = 7
"""Volta: what the PTX is written for."""

_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, ctypes.POINTER(c_char_p)),
    "cuDeviceGetByPCIBusId": (ctypes.POINTER(c_int), c_char_p),
    "cuDeviceGetAttribute": (ctypes.POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (ctypes.POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (ctypes.POINTER(c_void_p), c_void_p, c_char_p),
    "cuMemGetInfo_v2": (ctypes.POINTER(c_size_t), ctypes.POINTER(c_size_t)),
    "cuMemAlloc_v2": (ctypes.POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemsetD32_v2": (c_uint64, c_uint, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuLaunchKernel": (
        c_void_p, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_void_p, ctypes.POINTER(c_void_p), c_void_p,
    ),
}  # fmt: skip


class CudaDevice:
    """One GPU, by its PCI bus id as NVML names it; the calling thread owns its context until ``close``. ``KernelError``
    in one line for everything that fails."""

    def __init__(self, bus_id: str, ptx: bytes, library: str = LIBRARY) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
            for name, arguments in _ARGUMENTS.items():
                getattr(self._cuda, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise KernelError(f"no CUDA driver here: {error}") from None
        self._module, self._memory = c_void_p(), list[c_uint64]()
        self._device = c_int(-1)
        self._call("cuInit", 0)
        self._call("cuDeviceGetByPCIBusId", byref(self._device), bus_id.encode())
        if self.attribute(MAJOR) < OLDEST_MAJOR:
            raise KernelError(f"GPU {bus_id}: is older than Volta, which the kernels need")
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        try:
            self._call("cuCtxSetCurrent", context)
            self._call("cuModuleLoadData", byref(self._module), ptx)
        except KernelError:
            self.close()
            raise

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute."""
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), number, self._device)
        return value.value

    def free_bytes(self) -> int:
        """Memory that nobody has."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def floats(self, number: int, value: float = 0.0) -> int:
        """The address of so many numbers, each of this value. Freed by ``close``."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), 4 * number)
        self._memory.append(address)
        bits = c_uint.from_buffer_copy(c_float(value)).value
        self._call("cuMemsetD32_v2", address, bits, number)
        return address.value

    def read(self, address: int, number: int) -> list[float]:
        """Numbers from there."""
        found = (c_float * number)()
        self._call("cuMemcpyDtoH_v2", ctypes.cast(found, c_void_p), address, 4 * number)
        return list(found)

    def function(self, name: str) -> c_void_p:
        """A kernel of the module."""
        found = c_void_p()
        self._call("cuModuleGetFunction", byref(found), self._module, name.encode())
        return found

    def launch(self, function: c_void_p, blocks: int, threads: int, *arguments: Any) -> None:
        """Start it; arguments are of ctypes."""
        pointers = (c_void_p * len(arguments))(*(ctypes.cast(ctypes.pointer(one), c_void_p) for one in arguments))
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    def wait(self) -> None:
        """Until all that was started has ended."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Free everything. Errors are of no use any more: the driver frees the rest with the process."""
        for address in self._memory:
            self._cuda.cuMemFree_v2(address)
        self._memory.clear()
        if self._module:
            self._cuda.cuModuleUnload(self._module)
        self._module = c_void_p()
        self._cuda.cuDevicePrimaryCtxRelease_v2(self._device)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            text = c_char_p()
            known = self._cuda.cuGetErrorString(status, byref(text)) == 0 and text.value
            raise KernelError(f"{name}: {text.value.decode() if known and text.value else f'CUDA error {status}'}")
