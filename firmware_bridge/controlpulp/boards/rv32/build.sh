#!/bin/sh
# Builds the rv32 image: build.sh OUTPUT.elf [flags for the compiler, such as -DPUBLISHED=1 or -Wl,--defsym=soc_uart=ADDRESS].
# Debian: apt-get install --no-install-recommends gcc-riscv64-unknown-elf
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=$1
shift
cc=${RISCV_CC:-riscv64-unknown-elf-gcc}
objcopy=${RISCV_OBJCOPY:-${cc%gcc}objcopy}
# gcc 12 picks the rv64 libgcc for rv32imc_zicsr: the one it names for plain rv32imc is linked by path.
libgcc=$("$cc" -march=rv32imc -mabi=ilp32 -print-libgcc-file-name)
"$cc" -march=rv32imc_zicsr -mabi=ilp32 -mcmodel=medany -std=c11 -O2 -ffreestanding -nostdlib -nostartfiles \
    -fno-tree-loop-distribute-patterns -fno-strict-aliasing -ffunction-sections -fdata-sections -Wl,--gc-sections -Wl,--no-warn-rwx-segments \
    -Wall -Wextra -Wshadow -Werror "$@" -T "$here/link.ld" -o "$output" \
    "$here/start.S" "$here"/*.c "$here"/../../src/*.c "$libgcc"
# The sums that the image checks at its start (image.c).
"$objcopy" -O binary -j .text "$output" "$output.text"
od -An -v -w4 -tu4 "$output.text" | awk '
    { sum = (sum + $1) % 4294967296; sums = (sums + sum) % 4294967296 }
    function word(n,  i) { for (i = 0; i < 4; i++) { printf "\\%03o", n % 256; n = int(n / 256) } }
    END { word(sum); word(sums) }' >"$output.octal"
# shellcheck disable=SC2059 # octal escapes
printf "$(cat "$output.octal")" >"$output.sums"
"$objcopy" --update-section .image_sums="$output.sums" "$output"
rm -f "$output.text" "$output.octal" "$output.sums"
