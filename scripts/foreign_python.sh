#!/bin/sh
# Programs of PyPI for tests: those that read GPUs and energy (GPUtil, nvsmi, py3smi, pyJoules, Zeus, CodeCarbon), which
# run on an emulated node, NVIDIA's ptxas, which assembles our PTX, and pybatsim, whose schedulers decide in a replay.
# They get an environment of their own, build/foreign-python: their packages would crowd .venv.
#
# The lock has the hashes of the files for Python 3.11 on x86-64; elsewhere pip refuses it, and the tests are skipped.
# Two packages that these programs name are left out: amdsmi, which makes CodeCarbon look for AMD's GPUs, and pynvml, a
# retired name of nvidia-ml-py that only prints a warning.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
lock=scripts/foreign_python.lock
target=build/foreign-python
cmp -s "$lock" "$target/complete" && exit 0
rm -rf "$target"
mkdir -p build
"$python" -m venv "$target"
"$target/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r "$lock"
cp "$lock" "$target/complete"
