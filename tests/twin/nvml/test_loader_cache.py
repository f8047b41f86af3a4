"""The loader's list with the emulated library in it: the loader's own programs read it."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from twin.nvml import loader_cache

LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin")

if not os.path.exists(loader_cache.PLACE) or LDCONFIG is None:
    pytest.skip("this system has no list of libraries (glibc, ldconfig)", allow_module_level=True)

HOST = Path(loader_cache.PLACE).read_bytes()


def listed(cache: bytes, file: Path) -> list[str]:
    """The lines of ``ldconfig -p``."""
    file.write_bytes(cache)
    done = subprocess.run([str(LDCONFIG), "-p", "-C", str(file)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[1:]


def test_ldconfig_lists_the_library_and_all_others_as_before(library_file: Path, tmp_path: Path) -> None:
    lines = listed(loader_cache.with_library(HOST, str(library_file)), tmp_path / "cache")
    added = [line for line in lines if line.strip().startswith("libnvidia-ml.so.1 ")]
    assert [line.rpartition(" => ")[2] for line in added] == [str(library_file)]
    others = [line for line in listed(HOST, tmp_path / "host") if "libnvidia-ml.so.1 " not in line]
    assert [line for line in lines if line not in added] == others


def test_a_library_of_the_same_name_is_replaced(library_file: Path, tmp_path: Path) -> None:
    other = tmp_path / library_file.name
    shutil.copy(library_file, other)
    both = loader_cache.with_library(loader_cache.with_library(HOST, str(other)), str(library_file))
    paths = [path for name, path in loader_cache.libraries(both) if name == library_file.name]
    assert paths == [str(library_file)]


@pytest.mark.parametrize("name", ["a.so.9", "libnvidia-ml.so.1", "libz.so.10", "libz.so.1.2", "zz.so.1"])
def test_the_list_stays_in_the_loaders_order(name: str, library_file: Path, tmp_path: Path) -> None:
    """The loader searches by halves. ldconfig wrote the host's list; that order is the measure."""
    own = tmp_path / name
    shutil.copy(library_file, own)
    names = [each for each, _ in loader_cache.libraries(loader_cache.with_library(HOST, str(own)))]
    at = names.index(name)
    assert not (at and loader_cache._order(names[at - 1], name) < 0)
    assert all(loader_cache._order(one, other) >= 0 for one, other in itertools.pairwise(names))


@pytest.mark.parametrize(
    ("first", "second"), [("libz.so.10", "libz.so.9"), ("lib1.so", "liba.so"), ("libz.so.1", "libz.so")]
)
def test_numbers_in_names_are_compared_by_value_and_come_before_letters(first: str, second: str) -> None:
    """As _dl_cache_libcmp (elf/dl-cache.c) does."""
    assert loader_cache._order(first, second) > 0 > loader_cache._order(second, first)


def test_the_loader_itself_finds_the_library_without_any_environment(library_file: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, for a mount namespace with its own list")
    cache = tmp_path / "cache"
    cache.write_bytes(loader_cache.with_library(HOST, str(library_file)))
    script = 'mount --bind "$0" "$1" && shift && exec env -i "$@"'
    load = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1'); print(open('/proc/self/maps').read())"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(cache), loader_cache.PLACE, sys.executable, "-I", "-c", load],
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(library_file) in done.stdout, done.stderr


def test_the_names_of_hardware_folders_move_with_the_strings(library_file: Path) -> None:
    """A list whose extensions name a folder of glibc-hwcaps; this host's may have none."""
    text = b"x86-64-v3\0"
    folder = len(HOST) + 48
    names = struct.pack("=I", folder)
    extensions = struct.pack("=IIIIII", 0xEAA42174, 1, 1, 0, len(HOST) + 44, 4) + b"\0" * 20 + names
    header = bytearray(HOST)
    struct.pack_into("=I", header, 32, len(HOST))
    made = loader_cache.with_library(bytes(header) + extensions + text, str(library_file))
    at = struct.unpack_from("=I", made, 32)[0]
    offset = struct.unpack_from("=IIIIII", made, at)[4]
    place = struct.unpack_from("=I", made, offset)[0]
    assert made[place:].startswith(text)


@pytest.mark.parametrize("wrong", [b"", b"no list", HOST[:30]])
def test_a_file_of_another_format_is_refused(wrong: bytes, library_file: Path) -> None:
    with pytest.raises(loader_cache.UnknownListError):
        loader_cache.with_library(wrong, str(library_file))
