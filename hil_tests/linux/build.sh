#!/bin/sh
# The guest kernel: user-mode Linux from Debian's linux-source-6.12, configured by kernel.config.
#
#   hil_tests/linux/build.sh         build it unless it is there, and print its path
#   hil_tests/linux/build.sh find    print its path, or fail when it has not been built
#
# Kept per version of the sources and of the configuration in ~/.cache/nodectl (NODECTL_CACHE names another folder),
# so that it is built once: a few minutes and 2 GB in a temporary folder, 6 MB afterwards.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=/usr/src/linux-source-6.12.tar.xz
fail() { printf '%s\n' "hil-linux: $*" >&2; exit 1; }

[ -f "$source" ] || fail "$source is missing: run scripts/setup.sh linux"
version=$(dpkg-query -W -f '${Version}' linux-source-6.12)
config=$(sha256sum "$here/kernel.config" | cut -c1-12)
cache=${NODECTL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodectl}
kernel=$cache/uml-$version-$config
if [ ! -x "$kernel" ]; then
    [ "${1:-build}" = build ] || fail "the guest kernel has not been built: run make hil-linux"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT INT TERM
    printf '%s\n' "hil-linux: building Linux $version for user mode, once; this takes some minutes" >&2
    tar -xf "$source" -C "$work" --strip-components=1
    mkdir "$work/out"
    {
        make -C "$work" ARCH=um O=out KCONFIG_ALLCONFIG="$here/kernel.config" allnoconfig
        nice -n 10 make -C "$work" ARCH=um O=out -j "$(nproc)" linux
    } >"$cache/build.log" 2>&1 || { tail -n 20 "$cache/build.log" >&2; fail "the build failed; see $cache/build.log"; }
    # Kconfig silently drops options that it does not know, or whose dependencies are off.
    grep -v '=n$' "$here/kernel.config" | grep '^CONFIG' | while read -r line; do
        grep -qxF "$line" "$work/out/.config" || fail "this source has no $line"
    done
    mv "$work/out/linux" "$kernel"
fi
printf '%s\n' "$kernel"
