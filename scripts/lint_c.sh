#!/bin/sh
# Compiles every C source of the project with warnings as errors; writes no object.
set -eu
cd "$(dirname "$0")/.."
# benchmarks/slurm_energy needs Slurm's header, which its benchmark fetches
for source in $(git ls-files '*.c' ':!benchmarks/slurm_energy'); do
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wshadow -Werror -fsyntax-only -Itwin/csrc -Ipmu/csrc -Icluster_agent/csrc -Inodectl/include \
        -Ifirmware_bridge/controlpulp/boards/rv32 -Itests/firmware/litex "$source"
done
