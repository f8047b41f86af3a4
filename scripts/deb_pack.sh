#!/bin/sh
# Packs the trees of scripts/deb.sh into packages.
#
#   scripts/deb_pack.sh WORK DIRECTORY VERSION ARCHITECTURE
#
# They get their own names only when all of them are whole and on the disk: an interrupted build leaves none of them.
set -eu
work=$1 out=$2 version=$3 arch=$4
packages="nodectl clusterctl clusterctl-page nodectl-twin"
for package in $packages; do
    dpkg-deb --root-owner-group -Zxz -z1 --build "$work/$package" "$work/${package}_${version}_$arch.deb" >/dev/null
done
for package in $packages; do
    name=${package}_${version}_$arch.deb
    cp "$work/$name" "$out/.$name.part"
    sync "$out/.$name.part"
done
for package in $packages; do
    name=${package}_${version}_$arch.deb
    mv "$out/.$name.part" "$out/$name"
    echo "$out/$name"
done
