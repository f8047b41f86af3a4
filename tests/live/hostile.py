"""Jobs that do not want to end, or to be seen: one row for each way that was tried.

A job begins by noting who else of its user lives (``others.ATTEMPT``), which nobody must; then it does what its way
says. ``$K`` is a number that its processes have in their command lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

End = Literal["own", "walltime", "cancel"]

PRELUDE: Final = (
    "find /proc -maxdepth 1 -name '[0-9]*' -user $(id -u) -printf '%f\\n' >others.$NODECTL_ATTEMPT 2>/dev/null; true; "
)
"""Two lines are the shell's own and find's."""

READY: Final = "touch ready; "
DONE: Final = "touch ended; "
WAIT: Final = "sleep 1000$K; "

PYTHON: Final = "exec /usr/bin/env python3 -Sc '"


@dataclass(frozen=True, slots=True)
class Way:
    """``end``: by whom the job ends, if it has its way not at all. ``needs_user``: whether a job of the agent's own
    user would harm the machine that this runs on. ``status``: its exit status, where it ends by itself."""

    name: str
    text: str
    end: End = "walltime"
    prolog: str = ""
    epilog: str = ""
    status: int = 0
    needs_user: bool = True


def _python(text: str) -> str:
    return PYTHON + text.strip() + "'"


WAYS: Final = (
    Way("stops its supervisor, then is cancelled", READY + "kill -STOP $PPID; " + WAIT, "cancel", needs_user=False),
    Way("stops its supervisor until its walltime", "while :; do kill -STOP $PPID; sleep 0.1; done", needs_user=False),
    Way("kills its supervisor", "setsid sleep 1000$K & sleep 0.3; kill -9 $PPID; " + WAIT, needs_user=False),
    Way(
        "forges its end",
        "cd $(dirname $NODECTL_PROGRESS) && for f in ended.json ended.json.part stage ending session; do"
        ' echo \'{"status": 0, "cause": "", "started_s": 1.0, "ended_s": 2.0, "detail": ""}\' >$f.x; mv -f $f.x $f;'
        " done; " + WAIT,
        needs_user=False,
    ),
    Way("takes leases on its files", _python("""
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(os.environ["NODECTL_PROGRESS"], os.O_RDWR)
os.ftruncate(file, 4000000)
open("ready", "w").close()
while True:
    try: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError: pass
"""), "cancel"),
    Way(
        "leaves processes whose first thread has ended",
        "(setsid " + _python("""
import ctypes, os, threading, time
def go():
    open("up", "w").close()
    time.sleep(1000)
threading.Thread(target=go).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
""").removeprefix("exec ") + " 1000$K &); while [ ! -e up ]; do sleep 0.05; done; sleep 0.2; " + DONE,
        "own",
    ),
    Way("is a chain of forks", DONE + _python("""
import os
while True:
    if os.fork(): os._exit(0)
"""), "own"),
    Way("forks twice and leaves its session", f"(setsid sh -c 'setsid sleep 1000$K & setsid sleep 1000$K' &) ; {DONE}",
        "own", needs_user=False),
    Way("has no environment and ignores every signal", "env -i setsid sh -c \"trap '' HUP INT QUIT TERM USR1 USR2; "
        "sleep 1000$K & sleep 1000$K\" >/dev/null 2>&1 & sleep 0.3; " + DONE, "own", needs_user=False),
    Way("traces its supervisor", READY + _python("""
import ctypes, os, time
libc = ctypes.CDLL(None)
for request in (16, 0x4206):
    libc.ptrace(request, os.getppid(), 0, 0)
try:
    open(f"/proc/{os.getppid()}/mem", "r+b")
except OSError:
    pass
time.sleep(1000)
"""), "cancel"),
    Way("leaves its cgroup", "for f in $(find /sys/fs/cgroup -name cgroup.procs -o -name tasks 2>/dev/null |"
        " head -300); do echo $$ >$f; done 2>/dev/null; setsid sleep 1000$K & " + DONE, "own"),
    Way("writes into /proc", "for f in oom_score_adj mem comm clear_refs timerslack_ns setgroups uid_map; do"
        " echo -1000 >/proc/$PPID/$f; echo -900 >/proc/self/$f; done 2>/dev/null; setsid sleep 1000$K & " + DONE,
        "own"),
    Way("takes all descriptors", _python("""
import os, time
for i in range(4): os.fork()
taken = []
try:
    while True: taken += os.pipe()
except OSError:
    time.sleep(1000)
""")),
    Way("fills the disk of its records", "cat /dev/zero >fill 2>/dev/null; cat /dev/zero >>$NODECTL_PROGRESS"
        " 2>/dev/null; rm fill; setsid sleep 1000$K & exit 7", "own", status=7),
    Way("lies about its progress", "cd $(dirname $NODECTL_PROGRESS); for i in 1 2 3 4 5; do"
        " printf '\\377\\377\\377\\377\\377\\377\\377\\377' >progress; printf '\\1' >progress; : >progress;"
        " printf '\\0\\0\\0\\0\\0\\0\\370\\177' >progress; truncate -s 1G progress; sleep 0.05; done;"
        " rm -f progress; mkfifo progress; ln -sf /dev/zero progress; mv progress p; setsid sleep 1000$K &", "own"),
    Way("sets the clock", "date -s 1999-01-01 2>/dev/null; date -s 2099-01-01 2>/dev/null; " + _python("""
import time
for clock in (0, 1, 7):
    try: time.clock_settime(clock, 1.0)
    except OSError: pass
time.sleep(1000)
""")),
    Way("takes memory and wants to be spared", "echo -900 2>/dev/null >/proc/self/oom_score_adj; " + _python("""
import os, time
os.fork()
taken = bytearray(60_000_000)
for at in range(0, len(taken), 4096): taken[at] = 1
time.sleep(1000)
""")),
    Way("signals everybody", "for s in TERM INT HUP USR1 USR2 QUIT STOP KILL; do for p in /proc/[0-9]*; do"
        " p=${p#/proc/}; [ $p = $$ ] || kill -s $s $p; done; done 2>/dev/null; setsid sleep 1000$K & " + DONE, "own"),
    Way("kills all that it may", "setsid sleep 1000$K & kill -9 -1; setsid sleep 1000$K & " + DONE, "own"),
    Way("ignores SIGTERM", "trap '' TERM; " + READY + "(trap '' TERM; sleep 1000$K) & while :; do sleep 1000$K; done",
        "cancel", needs_user=False),
    Way("plants links in its records", "d=$(dirname $NODECTL_PROGRESS); for f in $d/* $d; do mv $f /tmp/x$K;"
        " ln -sf /etc/passwd $f; rm -rf $f; chmod 777 $f; done 2>/dev/null; rm -rf $d ${d%/*};"
        " setsid sleep 1000$K & " + DONE, "own"),
    Way("renames its working directory", "w=$PWD; mv $w $w.x; ln -s /etc $w; setsid sleep 1000$K & sleep 0.2; rm $w;"
        " mv $w.x $w; " + DONE, "own", epilog="echo epilog"),
    Way("closes and writes what it inherited", "for i in 3 4 5 6 7 8 9; do eval \"echo x >&$i; exec $i>&-\"; done"
        " 2>/dev/null; exec >/dev/null; setsid sleep 1000$K & " + DONE, "own"),
    Way("locks what its supervisor locks", _python("""
import fcntl, os, time
at = os.path.dirname(os.environ["NODECTL_PROGRESS"])
taken = []
for path in [f"{at}/{name}" for name in ("lock", "progress", "step.json", "ended.json")] + [at, os.path.dirname(at)]:
    try:
        taken.append(os.open(path, os.O_RDONLY))
        fcntl.flock(taken[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: pass
time.sleep(1000)
""")),
    Way("leaves zombies", READY + _python("""
import os, time
for i in range(200):
    if not os.fork(): os._exit(0)
time.sleep(1000)
"""), "cancel"),
    Way("has a huge environment and output", "head -c 20000000 /dev/zero; export H=$(head -c 100000 /dev/zero |"
        " tr '\\0' x); setsid sleep 1000$K & " + DONE, "own"),
    Way("stays behind in its prolog", "touch ended; sleep 0.3", "own", prolog="setsid sleep 1000$K >/dev/null 2>&1 &"),
    Way("stays behind in its epilog", "touch ended; sleep 0.3", "own",
        epilog="env -i setsid sh -c 'trap \"\" TERM; sleep 1000$K' & exit 0"),
    Way("stops itself", READY + "setsid sleep 1000$K & kill -STOP -1; kill -STOP $$; " + WAIT, "cancel"),
    Way("hides in namespaces", "unshare -Urpf sh -c 'mount -t proc proc /proc; setsid sleep 1000$K & sleep 1000$K' "
        "2>/dev/null & sleep 0.3; " + DONE, "own"),
)  # fmt: skip
