#!/bin/sh
# A QEMU (8.1 or later) that has vhost-user-scmi-pci: the one of this machine, or that of Debian 12's backports, unpacked
# into ~/.cache/nodectl (NODECTL_CACHE names another folder) and not installed: Debian's 7.2 stays, with its riscv32.
#
#   hil_tests/linux/qemu.sh         fetch it unless it is there, and print its path
#   hil_tests/linux/qemu.sh find    print its path, or fail when it is not there
set -eu
fail() { printf '%s\n' "hil-linux: $*" >&2; exit 1; }
has_device() { "$1" -device vhost-user-scmi-pci,help 2>/dev/null | grep -q ^vhost-user-scmi-pci; } # its exit status is 0 in any case

own=$(command -v qemu-system-aarch64 || true)
[ -n "$own" ] || fail "qemu-system-aarch64 is missing: run scripts/setup.sh linux"
if has_device "$own"; then printf '%s\n' "$own"; exit 0; fi
cache=${NODECTL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodectl}
root=$cache/qemu-backports
if [ ! -x "$root/qemu-system-aarch64" ]; then
    [ "${1:-fetch}" = fetch ] || fail "QEMU 8.1 or later with vhost-user-scmi-pci is not here: run make hil-linux"
    # An apt with a state of its own, so that this machine's sources stay as they are.
    mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' "Created-By: Packages" | awk '$1 == "bookworm" { print $2; exit }')
    [ -n "$mirror" ] || fail "this QEMU has no vhost-user-scmi-pci (8.1 or later is needed), and only Debian 12's backports are known here"
    work=$(mktemp -d "${TMPDIR:-/tmp}/qemu.XXXXXX")
    trap 'rm -rf "$work"' EXIT INT TERM
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" >"$work/sources.list"
    apt() {
        apt-get -qq -o Dir::State::lists="$work/lists" -o Dir::Etc::sourcelist="$work/sources.list" \
            -o Dir::Etc::sourceparts=- -o Dir::Cache="$work/cache" -o APT::Sandbox::User= "$@" >/dev/null 2>"$work/log"
    }
    printf '%s\n' "hil-linux: fetching QEMU from Debian's backports, once" >&2
    apt update || fail "Debian's backports cannot be read: $(tail -n 1 "$work/log")"
    (cd "$work" && apt download qemu-system-arm qemu-system-common qemu-system-data) ||
        fail "QEMU cannot be fetched from Debian's backports: $(tail -n 1 "$work/log")"
    for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
    # Modules are taken from its own folder: those of another QEMU end it.
    modules=$root/usr/lib/$(cd "$work/root/usr/lib" && echo *-linux-gnu)/qemu
    {
        echo "#!/bin/sh"
        echo "QEMU_MODULE_DIR='$modules' exec '$root/usr/bin/qemu-system-aarch64' -L '$root/usr/share/qemu' \"\$@\""
    } >"$work/root/qemu-system-aarch64"
    chmod +x "$work/root/qemu-system-aarch64"
    mkdir -p "$cache"
    rm -rf "$root"
    mv "$work/root" "$root"
fi
has_device "$root/qemu-system-aarch64" || fail "$root/qemu-system-aarch64 does not run here: $("$root/qemu-system-aarch64" --version 2>&1 | tail -n 1)"
printf '%s\n' "$root/qemu-system-aarch64"
