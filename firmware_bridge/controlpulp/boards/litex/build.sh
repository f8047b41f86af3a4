#!/bin/sh
# Builds the rv32 image for a LiteX SoC:
#
#   build.sh OUTPUT.elf INCLUDE [SLOWDOWN=N] [flags as for ../rv32/build.sh]
#
# INCLUDE is the folder with LiteX's headers "generated/csr.h", "soc.h" and "mem.h" (build/BOARD/software/include). They
# give the addresses and the clock. What the image shares with another side lies in the region "window", which the core must
# not cache; without one, which is enough for an agent on the line, in the last 4 kB of main RAM.
#
# SLOWDOWN: the image takes N seconds for one second. A control slot takes up to 100 000 cycles, so a clock below 250 MHz
# is too slow for slots of 500 us: 5 at 100 MHz.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=$1
include=$2
shift 2
slowdown=1
case ${1:-} in SLOWDOWN=*)
    slowdown=${1#*=}
    shift
    ;;
esac
number() { sed -n "s/^#define $2 \([0-9a-fxA-F]*\)L*\$/\1/p" "$include/generated/$1.h"; }
ram=$(number mem MAIN_RAM_BASE)
window=$(number mem WINDOW_BASE)
clock=$(number soc CONFIG_CLOCK_FREQUENCY)
[ -n "$ram" ] && [ -n "$clock" ] || { echo "litex: no main RAM or no clock in $include/generated" >&2; exit 1; }
if [ -n "$window" ]; then
    shared=$((window + ($(number mem WINDOW_SIZE) > 0x80000 ? 0x80000 : 0)))
else
    shared=$((ram + $(number mem MAIN_RAM_SIZE) - 0x1000))
fi
# Their definitions only: the functions next to them need more of LiteX's software.
defined=$(mktemp -d)
trap 'rm -rf "$defined"' EXIT INT TERM
mkdir "$defined/generated"
for header in csr soc; do
    grep '^#define [A-Z]' "$include/generated/$header.h" >"$defined/generated/$header.h"
done
SOC="$here/soc.c" sh "$here/../rv32/build.sh" "$output" -I"$defined" -DSERIAL=1 -DTIMEBASE_HZ="$((clock * slowdown))u" \
    -Wl,--defsym=soc_ram="$ram" -Wl,--defsym=soc_window="$shared" "$@"
