#!/bin/sh
# Builds the rv32 image: build.sh OUTPUT.elf [flags for the compiler, such as -DPUBLISHED=1 or -Wl,--defsym=soc_uart=ADDRESS].
# SOC names the file with the functions of another SoC (soc.h); default: clint_16550.c.
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
    -Wall -Wextra -Wshadow -Werror -I"$here" "$@" -T "$here/link.ld" -o "$output" \
    "$here/start.S" "$here/board.c" "$here/image.c" "${SOC:-$here/clint_16550.c}" "$here"/../../src/*.c "$libgcc"
# The CRC that the image checks at its start (image.c).
"$objcopy" -O binary -j .text "$output" "$output.text"
crc=$(cksum <"$output.text")
crc=${crc%% *}
# shellcheck disable=SC2059 # octal escapes
printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $((crc & 255)) $((crc >> 8 & 255)) $((crc >> 16 & 255)) $((crc >> 24)))" >"$output.crc"
"$objcopy" --update-section .image_crc="$output.crc" "$output"
rm -f "$output.text" "$output.crc"
