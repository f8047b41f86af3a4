#!/bin/sh
# Builds the rv32 image: build.sh OUTPUT.elf [flags for the compiler, such as -DPUBLISHED=1].
# Debian: apt-get install --no-install-recommends gcc-riscv64-unknown-elf
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=$1
shift
cc=${RISCV_CC:-riscv64-unknown-elf-gcc}
# gcc 12 picks the rv64 libgcc for rv32imac_zicsr: the one it names for plain rv32imac is linked by path.
libgcc=$("$cc" -march=rv32imac -mabi=ilp32 -print-libgcc-file-name)
"$cc" -march=rv32imac_zicsr -mabi=ilp32 -mcmodel=medany -std=c11 -O2 -ffreestanding -nostdlib -nostartfiles \
    -fno-tree-loop-distribute-patterns -ffunction-sections -fdata-sections -Wl,--gc-sections -Wl,--no-warn-rwx-segments \
    -Wall -Wextra -Wshadow -Werror "$@" -T "$here/link.ld" -o "$output" \
    "$here/start.S" "$here/board.c" "$here"/../../src/*.c "$libgcc"
