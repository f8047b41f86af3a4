"""/dev/cpu/N/msr: a FUSE file system whose files read and write registers, and whose names show a character device.

A program reads register R of CPU N by eight bytes at offset R of /dev/cpu/N/msr, which is character device 202:N (Linux
Documentation, msr(4)). No driver for that number may be in this kernel, and if there is one it reads the host's
registers. So an open file must be a regular one of ours; yet ``stat`` and ``test -c`` must see the device.

The kernel looks a name up for both in the same way, but asks for attributes only to answer a stat. If that is refused
with ESTALE, it looks the name up again and starts over (``retry_estale`` in fs/stat.c). So:

    open:  LOOKUP -> the regular file; OPEN
    stat:  LOOKUP -> the regular file; GETATTR -> ESTALE; LOOKUP -> the device; GETATTR -> character device 202:N

Which lookup is which is known by the thread that made the request and by what it requested before. Names and
attributes are never cached, so each lookup reaches us. The mount refuses to open devices (nodev): even a race ends in
EACCES, never in the host's registers. What shows the difference is ``fstat`` on an open descriptor: a regular file.

Source: include/uapi/linux/fuse.h, Linux arch/x86/kernel/msr.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

from twin._serve import ffi, lib
from twin.errors import TwinError
from twin.msr.registers import Registers

FOLDER: Final = "/dev/cpu"
MSR_MAJOR: Final = 202

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
_GETXATTR, _LISTXATTR, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS = 22, 23, 25, 26, 27, 28, 29, 34
_INTERRUPT, _BATCH_FORGET, _STATX = 36, 42, 52
_UNANSWERED = (_FORGET, _BATCH_FORGET, _INTERRUPT)

_HEADER: Final = struct.Struct("=IIQQIIIHH")
_ANSWER: Final = struct.Struct("=IiQ")
_ATTRIBUTES: Final = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY: Final = struct.Struct("=QQQQII")
_SPAN: Final = struct.Struct("=QQI")  # of reads, writes and listings: handle, offset, size
_DATA_OF_WRITE: Final = _HEADER.size + 40
_REQUEST_BYTES: Final = 64 * 1024
_DIRECT_IO: Final = 1
_WORD: Final = 8
_MOST_WALKS: Final = 1024  # ours: threads whose last lookup is remembered

_ROOT: Final = 1
_DIRECTORY, _FILE, _DEVICE = range(3)
"""What a node number names, in its low two bits; the rest is the CPU plus one."""

_LOOKED_UP, _STALE = range(2)


class MsrFiles:
    """The files of ``registers`` for CPUs 0 to ``cpus`` - 1; ``mount`` serves them from a thread of this process."""

    def __init__(self, registers: Registers, cpus: int) -> None:
        self._registers = registers
        self._cpus = cpus
        self._walks: dict[int, tuple[int, int]] = {}  # by thread: its step, and the CPU
        self._modes: dict[int, int] = {}
        self._fd = -1
        self._made_s = int(time.time())
        self._answers: dict[int, Callable[[int, int, int, bytes], bytes]] = {
            _LOOKUP: self._look_up,
            _GETATTR: self._attributes,
            _SETATTR: self._set_attributes,
            _OPEN: self._open,
            _READ: self._read,
            _WRITE: self._write,
            _OPENDIR: lambda node, user, thread, body: struct.pack("=QII", 0, 0, 0),
            _READDIR: self._list,
            _ACCESS: self._access,
            _STATFS: lambda node, user, thread, body: struct.pack("=QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0),
        }
        for code in (_RELEASE, _RELEASEDIR, _FLUSH):
            self._answers[code] = lambda node, user, thread, body: b""

    def mount(self) -> None:
        """Mount them at ``FOLDER``, which must exist. TwinError if that fails."""
        descriptors = ffi.new("int[2]")
        error = lib.fuse_mount(b"nodectl-twin-msr", descriptors, descriptors + 1)
        self._fd = descriptors[0]
        if not error:
            error = lib.fuse_attach(descriptors[1], FOLDER.encode())
            os.close(descriptors[1])
        if error:
            raise TwinError(f"no model-specific registers at {FOLDER}: {os.strerror(-error)}")
        threading.Thread(target=self._serve, name="registers", daemon=True).start()

    def _serve(self) -> None:
        request = bytearray(_REQUEST_BYTES)
        while True:
            try:
                size = os.readv(self._fd, [request])
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # ENODEV: unmounted
            self._answer(bytes(memoryview(request)[:size]))

    def _answer(self, request: bytes) -> None:
        _, code, unique, node, user, _, thread, _, _ = _HEADER.unpack_from(request)
        if code in _UNANSWERED:
            return
        number, body = 0, b""
        try:
            if code == _INIT:
                body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, 0)
            elif code in self._answers:
                body = self._answers[code](node, user, thread, request)
            else:
                if code != _STATX:  # the kernel follows it with GETATTR
                    self._walks.pop(thread, None)
                number = errno.ENODATA if code in (_GETXATTR, _LISTXATTR) else errno.ENOSYS
        except OSError as error:
            number = error.errno or errno.EIO
        with contextlib.suppress(OSError):  # ENOENT: the caller was killed meanwhile
            os.write(self._fd, _ANSWER.pack(_ANSWER.size + len(body), -number, unique) + body)

    # ---- names -------------------------------------------------------------------------------------------------

    def _look_up(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        name = request[_HEADER.size :].rstrip(b"\0").decode(errors="replace")
        if node == _ROOT:
            found = self._directory(name)
        elif node & 3 == _DIRECTORY and name == "msr":
            found = self._file(node, thread)
        else:
            found = 0
        if not found:
            raise _refused(errno.ENOENT)
        return _ENTRY.pack(found, 0, 0, 0, 0, 0) + self._status(found)

    def _directory(self, name: str) -> int:
        is_cpu = name.isdecimal() and str(int(name)) == name and int(name) < self._cpus
        return int(name) + 1 << 2 if is_cpu else 0

    def _file(self, directory: int, thread: int) -> int:
        cpu = directory >> 2
        if self._walks.get(thread) == (_STALE, cpu):
            return directory | _DEVICE
        if len(self._walks) >= _MOST_WALKS:
            self._walks.clear()
        self._walks[thread] = _LOOKED_UP, cpu
        return directory | _FILE

    def _attributes(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        if node != _ROOT and node & 3 == _FILE and self._walks.get(thread) == (_LOOKED_UP, node >> 2):
            self._walks[thread] = _STALE, node >> 2
            raise _refused(errno.ESTALE)
        if node & 3 != _DIRECTORY:
            self._walks.pop(thread, None)
        return struct.pack("=QII", 0, 0, 0) + self._status(node)

    def _set_attributes(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        """chmod(2), as administrators do for a group; all else is accepted and not stored."""
        self._walks.pop(thread, None)
        valid, mode = struct.unpack_from("=I64xI", request, _HEADER.size)
        if valid & 1:
            self._modes[node >> 2] = stat.S_IMODE(mode)
        return struct.pack("=QII", 0, 0, 0) + self._status(node)

    def _status(self, node: int) -> bytes:
        if node == _ROOT or node & 3 == _DIRECTORY:
            mode, links, device = stat.S_IFDIR | 0o755, 2, 0
        else:
            kind = stat.S_IFCHR if node & 3 == _DEVICE else stat.S_IFREG
            mode, links, device = kind | self._modes.get(node >> 2, 0o600), 1, _encoded(MSR_MAJOR, (node >> 2) - 1)
        times = (self._made_s,) * 3
        return _ATTRIBUTES.pack(node, 0, 0, *times, 0, 0, 0, mode, links, 0, 0, device, 4096, 0)

    def _list(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        _, offset, size = _SPAN.unpack_from(request, _HEADER.size)
        if node == _ROOT:
            names = [(cpu + 1 << 2, str(cpu), stat.S_IFDIR) for cpu in range(self._cpus)]
        else:
            names = [(node | _DEVICE, "msr", stat.S_IFCHR)]
        entries = b""
        for place, (number, name, kind) in enumerate(
            [(node, ".", stat.S_IFDIR), (_ROOT, "..", stat.S_IFDIR), *names][offset:], offset + 1
        ):
            entry = struct.pack("=QQII", number, place, len(name), kind >> 12) + name.encode()
            entry += bytes(-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries

    # ---- registers ---------------------------------------------------------------------------------------------

    def _access(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        self._walks.pop(thread, None)
        wanted = struct.unpack_from("=I", request, _HEADER.size)[0]
        if user and node & 3 != _DIRECTORY and wanted & ~(self._modes.get(node >> 2, 0o600) & 7):
            raise _refused(errno.EACCES)
        return b""

    def _open(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        """EACCES by the mode, EPERM without CAP_SYS_RAWIO (msr_open), which here is: for all but root."""
        flags = struct.unpack_from("=I", request, _HEADER.size)[0]
        wanted = {os.O_RDONLY: 4, os.O_WRONLY: 2}.get(flags & os.O_ACCMODE, 6)
        self._walks.pop(thread, None)
        if user:
            raise _refused(errno.EACCES if wanted & ~self._modes.get(node >> 2, 0o600) & 7 else errno.EPERM)
        return struct.pack("=QII", 0, _DIRECT_IO, 0)

    def _read(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        """Each eight bytes of one read are the same register again (msr_read)."""
        _, number, size = _SPAN.unpack_from(request, _HEADER.size)
        if size % _WORD:
            raise _refused(errno.EINVAL)
        return b"".join(
            self._registers.read((node >> 2) - 1, number).to_bytes(_WORD, "little") for _ in range(size // _WORD)
        )

    def _write(self, node: int, user: int, thread: int, request: bytes) -> bytes:
        _, number, size = _SPAN.unpack_from(request, _HEADER.size)
        if size % _WORD:
            raise _refused(errno.EINVAL)
        data = request[_DATA_OF_WRITE : _DATA_OF_WRITE + size]
        for at in range(0, size, _WORD):
            self._registers.write((node >> 2) - 1, number, int.from_bytes(data[at : at + _WORD], "little"))
        return struct.pack("=II", size, 0)


def _encoded(major: int, minor: int) -> int:
    """``new_encode_dev`` of linux/kdev_t.h."""
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
