#!/bin/sh
# Everything a fresh Debian or Ubuntu machine needs to build, test and demonstrate nodectl.
#
#   scripts/setup.sh [core|linux|rtl|all]    Debian packages for the demo alone (core), also for `make hil-linux` (linux) or
#                                            `make hil-rtl` (rtl), or for the demo, tests and lint (all, default)
#
# "all" also unpacks, into build/foreign and never installed, the daemons that the tests run on emulated nodes
# (scripts/foreign.sh), Slurm, OAR and Open MPI (slurm.sh, oar.sh, openmpi.sh), and installs programs of PyPI into an
# environment of their own (scripts/foreign_python.sh) and axe-core of npm (scripts/foreign_npm.sh).
#
# Leaves .venv/bin/nodectl and .venv/bin/clusterctl. Debian packages are installed only for needs that are not met,
# only as root, and never with NODECTL_NO_APT=1; otherwise the missing ones are named. Runs again in well under a
# second when nothing has changed.
set -eu
cd "$(dirname "$0")/.."
. scripts/apt.sh
scope=${1:-all}
python=${PYTHON:-python3}
say() { printf '%s\n' "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# --- what is missing ------------------------------------------------------------------------------------------
# need PACKAGE COMMAND...: the package is wanted when the command fails.
missing=""
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has_library() { ldconfig -p | grep -q "$1"; }
has_headers() { "$python" -c 'import os, sysconfig; raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; }

collect() {
    missing=""
    need python3 "$python" -c 'pass'
    need python3-venv "$python" -c 'import ensurepip, venv'
    need python3-dev has_headers
    need gcc sh -c 'command -v cc || command -v gcc'
    need libc6-dev sh -c 'echo "#include <stdio.h>" | cc -E -'
    need fuse3 sh -c 'command -v fusermount3'
    need util-linux sh -c 'command -v unshare'
    if [ "$scope" = all ]; then
        need "$(first_known linux-perf linux-tools-generic)" perf --version
        need "$(first_known linux-cpupower linux-tools-generic)" cpupower --version
        need iproute2 sh -c 'command -v ip'
        need powercap-utils sh -c 'command -v powercap-info'
        need strace sh -c 'command -v strace'
        need systemd sh -c 'command -v systemd-analyze'
        need qemu-system-misc sh -c 'command -v qemu-system-riscv32'
    fi
    if [ "$scope" = all ] || [ "$scope" = rtl ]; then
        need gcc-riscv64-unknown-elf sh -c 'command -v riscv64-unknown-elf-gcc'
        need verilator verilator --version
        need g++ g++ --version
        need make make --version
    fi
    if [ "$scope" = linux ]; then
        need linux-source-6.12 test -f /usr/src/linux-source-6.12.tar.xz
        need make make --version
        need flex flex --version
        need bison bison --version
        need bc bc --version
        need xz-utils xz --version
        need device-tree-compiler dtc --version
        need cpio cpio --version
        need gcc-aarch64-linux-gnu sh -c 'command -v aarch64-linux-gnu-gcc'
        need libc6-dev-arm64-cross test -f /usr/aarch64-linux-gnu/include/stdio.h
        need qemu-system-arm sh -c 'command -v qemu-system-aarch64'
    fi
}
# The first of the names that this distribution has (Ubuntu packs perf and cpupower together).
first_known() {
    for name in "$@"; do
        if apt-cache show "$name" >/dev/null 2>&1; then echo "$name"; return; fi
    done
    echo "$1"
}

install_packages() {
    collect
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        say "missing, please install the equivalents of:$missing"
    elif [ "${NODECTL_NO_APT:-0}" = 1 ]; then
        say "missing (NODECTL_NO_APT=1, nothing installed):$missing"
    elif [ "$(id -u)" != 0 ]; then
        say "missing; as root: apt-get install --no-install-recommends$missing"
    else
        apt_get update -qq || say "apt-get update failed; trying with the lists at hand"
        collect # names depend on the lists
        say "installing Debian packages:$missing"
        # shellcheck disable=SC2086 # a list of words
        apt_get install -y -qq --no-install-recommends $missing ||
            say "apt-get could not install all of:$missing"
    fi
}

# --- virtual environment ----------------------------------------------------------------------------------------
# The stamp is the hash of all that the build reads.
fingerprint() {
    {
        "$python" --version
        cat requirements.lock pyproject.toml setup.py
        find pmu twin firmware_bridge cluster_agent nodectl -name '*.[chS]' -o -name 'build*.py' | grep -v '/_[a-z]*\.c$' | LC_ALL=C sort | xargs cat
    } 2>&1 | sha256sum | cut -d' ' -f1
}

build() {
    "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' ||
        fail "Python 3.11 or later is needed ($("$python" --version 2>&1) found); set PYTHON=/path/to/python3.11"
    stamp=$(fingerprint)
    [ -f .venv/nodectl.stamp ] && [ "$(cat .venv/nodectl.stamp)" = "$stamp" ] && [ -x .venv/bin/nodectl ] && return 0
    [ -x .venv/bin/python ] || "$python" -m venv .venv || fail "cannot make .venv (python3-venv missing?)"
    say "installing the locked Python packages (requirements.lock)"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
    say "building the native modules"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
    printf '%s\n' "$stamp" >.venv/nodectl.stamp
}

# What comes from package archives alone: fetched and unpacked next to the build, which keeps one processor busy.
fetch_foreign() {
    if [ "${NODECTL_NO_APT:-0}" != 1 ] && command -v apt-get >/dev/null; then
        scripts/foreign.sh || say "the tests with tuned, TLP, thermald, crun, hwloc, Chromium and other programs will be skipped"
        scripts/slurm.sh unpack || say "the tests with a real Slurm will be skipped"
        scripts/oar.sh unpack || say "the tests with a real OAR will be skipped"
        scripts/openmpi.sh || say "the test with a real Open MPI will be skipped"
    fi
    [ -e build/foreign-python/complete ] || say "programs of PyPI that the tests run: some minutes"
    scripts/foreign_python.sh || say "the tests with GPUtil, nvsmi, py3smi, pyJoules, Zeus, CodeCarbon and pybatsim will be skipped"
    scripts/foreign_npm.sh || say "the test of pages with axe-core will be skipped"
}

install_packages
if [ "$scope" = all ]; then
    fetch_foreign &
    trap wait EXIT # also after an error: the next run begins with whole folders
fi
build
# Models of two cores in RTL and, for `make hil-rtl`, of a LiteX SoC, built once (half a minute of a processor each) and
# kept in ~/.cache/nodectl.
if [ "$scope" = all ] || [ "$scope" = rtl ]; then
    cores="vexriscv cv32e40p"
    [ "$scope" = all ] || cores="$cores litex"
    for core in $cores; do
        PYTHON=.venv/bin/python twin/rtl/build.sh "$core" >/dev/null || say "the tests with $core in RTL will be skipped"
    done
fi
wait
say "done"
