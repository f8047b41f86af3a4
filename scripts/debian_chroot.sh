#!/bin/sh
# A Debian of its own in build/debian, for tests of the packages: a minimal system with python3, systemd and lintian.
# debootstrap is unpacked into build, never installed; all mounts are in a namespace of their own. Needs root.
set -eu
cd "$(dirname "$0")/.."
. scripts/apt.sh
target=$PWD/build/debian
# perl-openssl-defaults: debootstrap finds no package by a name that it only provides; fuse3, libfuse2: nodectl-twin needs them
packages=python3,systemd,lintian,xz-utils,perl-openssl-defaults,fuse3,libfuse2
[ "$(cat "$target/complete" 2>/dev/null)" = "$packages" ] && exit 0
rm -rf "$target" build/debootstrap
mkdir -p build/debootstrap
fetch() { (cd build/debootstrap && apt-get download -qq debootstrap >/dev/null 2>&1); }
fetch || { apt_get update -qq && fetch; } || {
    echo "debian_chroot: the package debootstrap could not be downloaded" >&2
    exit 1
}
(cd build/debootstrap && dpkg-deb -x debootstrap_*.deb .)
DEBOOTSTRAP_DIR=$PWD/build/debootstrap/usr/share/debootstrap unshare --mount --pid --fork --mount-proc \
    sh build/debootstrap/usr/sbin/debootstrap --variant=minbase \
    --include="$packages" "${1:-bookworm}" "$target" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >build/debootstrap/log 2>&1 ||
    { tail -5 build/debootstrap/log >&2; exit 1; }
echo "$packages" >"$target/complete"
