#!/bin/sh
# A core's RTL, translated by Verilator and built with our SoC around it into a library (soc.h).
#
#   twin/rtl/build.sh vexriscv|cv32e40p          build it unless it is there, and print its path
#   twin/rtl/build.sh litex                      the same with a whole SoC of LiteX (litex_soc.py)
#   twin/rtl/build.sh litex headers              print the folder with that SoC's headers for C (generated/csr.h)
#   twin/rtl/build.sh CORE wave                  the same with waveforms (FST), which runs at a third of the speed
#   twin/rtl/build.sh CORE find                  print the path, or fail when it has not been built
#
# RTL and LiteX come from PyPI (*.lock, with hashes), into folders of their own. They and the libraries are kept in ~/.cache/nodectl (NODECTL_CACHE
# names another folder) per version of everything that they are made of: 10 to 30 s of a processor, once.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
core=$1 how=${2:-plain}
python=${PYTHON:-python3}
fail() { printf '%s\n' "rtl: $*" >&2; exit 1; }

command -v verilator >/dev/null || fail "verilator is missing: install verilator (make hil-rtl does)"
command -v g++ >/dev/null || fail "g++ is missing: install g++"
lock=$here/requirements.lock
case $core in
vexriscv | cv32e40p) ;;
litex) lock=$here/litex.lock ;;
*) fail "no core is called $core (vexriscv, cv32e40p, litex)" ;;
esac
kind=$how
case $how in find | headers) kind=plain ;; esac
digest() { sha256sum | cut -c1-12; }
# A change of the options of Verilator or of the compiler below needs another number here.
model_hash=$({ echo 1; verilator --version; cat "$here/$core.vlt" "$lock"
    [ "$core" != litex ] || cat "$here/litex_soc.py"; } | digest)
hash=$({ echo "$model_hash"; cat "$here"/soc.* "$here"/devices.h "$here"/wishbone.h "$here/$core.h"; } | digest)
cache=${NODECTL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodectl}
library=$cache/rtl-$core-$kind-$hash.so
model=$cache/rtl-$core-$kind-model-$model_hash
answer=$library
[ "$how" != headers ] || answer=$model
if [ -f "$library" ]; then
    printf '%s\n' "$answer"
    exit 0
fi
[ "$how" != find ] || fail "the model of $core has not been built: run make hil-rtl"
wave=$([ "$kind" = wave ] && echo 1 || echo 0)
mkdir -p "$cache"
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
log=$cache/build-rtl-$core.log
: >"$log"
# Another run may build the same at the same time: the first one that is done puts it in place.
keep() { mv -T "$1" "$2" 2>/dev/null || [ -d "$2" ]; }
run() { nice -n 10 "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "$1 failed; see $log"; }; }

# --- the RTL, from PyPI ---
cores=$cache/rtl-cores-$(digest <"$lock")
if [ ! -d "$cores" ]; then
    run "$python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes --target "$work/cores" \
        -r "$lock"
    keep "$work/cores" "$cores"
fi

# --- the model: C++ from RTL ---
# The RTL is others': its warnings are not ours to mend. cv32e40p assigns some signals in both ways (BLKANDNBLK).
if [ ! -d "$model" ]; then
    printf '%s\n' "rtl: building the model of $core, once" >&2
    vexriscv=$cores/pythondata_cpu_vexriscv/verilog/VexRiscv_IMAC.v
    if [ "$core" = vexriscv ]; then
        set -- --top-module VexRiscv "$vexriscv"
    elif [ "$core" = litex ]; then
        mkdir -p "$work/model/generated"
        run env PYTHONPATH="$cores" "$python" -s "$here/litex_soc.py" "$work/model/generated"
        set -- --top-module litex -Wno-COMBDLY "$work/model/generated/litex.v" "$vexriscv"
    else
        rtl=$cores/pythondata_cpu_cv32e40p/system_verilog/rtl
        set -- --top-module cv32e40p_top "+incdir+$rtl/include" "$rtl"/include/cv32e40p_apu_core_pkg.sv \
            "$rtl"/include/cv32e40p_fpu_pkg.sv "$rtl"/include/cv32e40p_pkg.sv
        for part in if_stage cs_registers register_file_ff load_store_unit id_stage aligner decoder compressed_decoder fifo \
            prefetch_buffer hwloop_regs mult int_controller ex_stage alu_div alu ff_one popcnt apu_disp controller \
            obi_interface prefetch_controller sleep_unit core top; do
            set -- "$@" "$rtl/cv32e40p_$part.sv"
        done
        set -- "$@" "$rtl/../bhv/cv32e40p_sim_clock_gate.sv"
    fi
    [ "$wave" = 0 ] || set -- --trace-fst --trace-structs "$@"
    run verilator --cc -O3 --Mdir "$work/model" --prefix Vmodel -Wno-fatal -Wno-lint -Wno-BLKANDNBLK -Wno-UNOPTFLAT \
        --x-assign fast --x-initial fast --noassert -DSYNTHESIS -CFLAGS -fPIC "$here/$core.vlt" "$@"
    objects="Vmodel__ALL.a verilated.o verilated_threads.o"
    [ "$wave" = 0 ] || objects="$objects verilated_fst_c.o"
    # shellcheck disable=SC2086 # a list of words
    run make -C "$work/model" -f Vmodel.mk OPT_FAST=-O2 OPT_SLOW=-O1 $objects
    keep "$work/model" "$model"
fi

# --- the library: the model and our SoC ---
root=$(verilator --getenv VERILATOR_ROOT)
run g++ -std=c++17 -O2 -fPIC -shared -Wl,-z,defs -Wall -Wextra -I"$here" -I"$model" -isystem "$root/include" \
    -isystem "$root/include/vltstd" -DVM_TRACE_FST="$wave" -DCORE_HEADER="\"$core.h\"" "$here/soc.cpp" \
    "$model/Vmodel__ALL.a" "$model"/verilated*.o $([ "$wave" = 0 ] || echo -lz) -o "$work/library.so"
mv "$work/library.so" "$library"
printf '%s\n' "$answer"
