#!/bin/sh
# Debian's Open MPI, for the test of hints from MPI: unpacked into build/openmpi and *never installed*.
set -eu
cd "$(dirname "$0")/.."
name=openmpi
programs="openmpi-bin libopenmpi3"
. scripts/namespaces.sh
unpack
