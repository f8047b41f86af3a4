#!/bin/sh
# Random tests of what `make test` tests with fixed examples: scripts/fuzz.sh [SECONDS] [NAME]...
#
# platform, line   coverage-guided fuzzing of the firmware in C, with ASan and UBSan
# properties       the property tests (hypothesis) in random order with new examples, again and again. Keep what fails as
#                  @example(...) or as a test of its own; .hypothesis/ remembers it until then
# lies, parsers    a cluster agent whose nodes say anything; everything that takes bytes from others (tests/fuzzing)
# odd_drivers, odd_controllers   NVML, the kernel's files and SCMI with answers that cannot be
# readers          every reader of a file that somebody else wrote: FUZZ_FILES of each (1000000: hours), on all
#                  processors
#
# Seconds are for each of the others (60). Inputs that found something new stay in out/fuzz/NAME; what breaks a harness is left
# there as crash-*, to be replayed with: out/fuzz/NAME.run out/fuzz/NAME/crash-...
# Debian: apt-get install --no-install-recommends clang-14 libclang-rt-14-dev libfuzzer-14-dev
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- platform line properties lies parsers odd_drivers odd_controllers readers

fuzz_properties() {
    end=$(($(date +%s) + seconds))
    while left=$((end - $(date +%s))) && [ "$left" -gt 0 ]; do
        nice -n 10 .venv/bin/python -m pytest tests -q -rfE -m hypothesis --hypothesis-profile=random \
            --for-seconds "$left" -o timeout=3600
    done
}

clang=""
for each in ${CLANG:-} clang clang-19 clang-16 clang-14; do
    command -v "$each" >/dev/null && clang=$each && break
done
case " $* " in *" platform "* | *" line "*) needs_clang=yes ;; *) needs_clang="" ;; esac
if [ -z "$clang" ] && [ "$needs_clang" ]; then
    echo "fuzz: clang is missing: install clang-14 libclang-rt-14-dev libfuzzer-14-dev (make test fuzzes with gcc, without coverage)" >&2
    exit 1
fi

firmware=firmware_bridge/controlpulp
mkdir -p out/fuzz
for name in "$@"; do
    echo "fuzz: $name, $seconds s"
    case $name in
    properties)
        fuzz_properties
        continue
        ;;
    readers)
        nice -n 10 .venv/bin/python -m tests.fuzzing.readers "${FUZZ_FILES:-1000000}"
        continue
        ;;
    lies | parsers | odd_drivers | odd_controllers)
        nice -n 10 .venv/bin/python -m "tests.fuzzing.$name" "${seconds}s"
        continue
        ;;
    esac
    board=$firmware/boards/host/board.c
    [ "$name" = line ] && board="" # its harness includes it
    # Comparisons are not traced: the harnesses build what the firmware compares, and the control law's would take three
    # quarters of the time.
    # shellcheck disable=SC2086 # a file or nothing
    "$clang" -std=c11 -O2 -g -Wall -Wextra -Wshadow -Werror -DLIBFUZZER -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-coverage=trace-cmp -fno-sanitize-recover=all -o "out/fuzz/$name.run" "tests/firmware/fuzz_$name.c" tests/firmware/fuzz_main.c \
        $board $firmware/src/*.c
    mkdir -p "out/fuzz/$name"
    nice -n 10 "out/fuzz/$name.run" -max_total_time="$seconds" -max_len=4096 -len_control=0 -verbosity=0 \
        -artifact_prefix="out/fuzz/$name/" -print_final_stats=1 "out/fuzz/$name" "tests/firmware/corpus/$name"
done
