"""Under a cap, no value above it belongs to whoever has set it: it is found soon, set again each time, and alarmed."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nodectl.config import Foreign
from nodectl.knobs import Outcome, open_knob
from nodectl.knobs.api import UNKNOWN, Raised
from nodectl.loop.notices import Notices
from nodectl.write.cap_guard import LEAST_NS, LOOK_NS, CapGuard, is_for_caps
from nodectl.write.last_writers import LastWriters, described
from nodectl.write.restore import restore_saved
from nodectl.write.saves import SaveError
from nodectl.write.writer import Writer
from pmu.system import OsKeptFile, system_ports
from tests.nodectl.file_tree import MAX_KHZ, POWERCAP, StillClock, file_node, limit_path
from tests.waiting import PATIENCE_S, within
from tests.writer_process.tree_writer import limit_path as package_path
from tests.writer_process.tree_writer import make_tree, put, writer_on

W = 1_000_000
S = 1_000_000_000
ZONE = f"{POWERCAP}/intel-rapl:0"
LONG, SHORT = f"{ZONE}/constraint_0_power_limit_uw", f"{ZONE}/constraint_1_power_limit_uw"
ENABLED = f"{ZONE}/enabled"
WINDOW, SHORT_WINDOW = (f"{ZONE}/constraint_{n}_time_window_us" for n in (0, 1))
LIMIT, CLOCK = "rapl/package-0/long_term_uw", "cpu/policy0/max_khz"


class Node:
    """A node of plain files under a cap, and a clock that is moved by hand."""

    def __init__(self, tmp_path: Path, policies: int = 4, most_w: int = 0, **foreign: object) -> None:
        self.ports = file_node(tmp_path / "node", policies)
        self.files = self.ports.files
        self.files.put(f"{ZONE}/constraint_0_max_power_uw", most_w * W)
        self.clock = StillClock()
        self.save = str(tmp_path / "save")
        self.names = [f"cpu/policy{n}/max_khz" for n in range(policies)]
        knobs = [open_knob(self.ports, name) for name in (*self.names, LIMIT)]
        self.writer = Writer(knobs, self.save, "boot", self.clock, foreign=Foreign(**foreign))
        self.writer.start()

    def tick(self, watts: int = 60, after_s: float = 0.5, clocks_too: bool = False, **clocks: int) -> list[Outcome]:
        self.clock.time_ns += round(after_s * S)
        settings = {f"cpu/{name}/max_khz": khz for name, khz in clocks.items()}
        return self.writer.apply({LIMIT: watts * W, **settings}, clocks_too)

    def at(self, path: str = LONG) -> int:
        return int(self.files.read(path))


@pytest.mark.parametrize("action", ["yield", "reassert", "alarm"])
def test_a_value_above_the_cap_is_set_again_at_each_attempt_whatever_is_set_for_foreign_values(tmp_path, action):
    node = Node(tmp_path, action=action, times=1)
    node.tick()
    for _ in range(30):
        node.files.put(LONG, 700 * W)
        (found,) = node.tick()
        assert (found.status, found.reason, found.by, node.at()) == ("written", "foreign writer", UNKNOWN, 60 * W)
        assert found.detail == (
            "ALARM: somebody (unknown) set it to 700000000 uW, above the cap; set again to 60000000"
        )
        assert node.writer.take_raised() == {LIMIT: Raised(700 * W, UNKNOWN)}
        assert node.tick()[0].status == "unchanged" and node.writer.take_raised() == {}


def test_what_a_raised_limit_allowed_is_at_most_what_the_hardware_takes(tmp_path):
    node = Node(tmp_path, most_w=600)
    node.tick()
    node.files.put(LONG, 700 * W)
    node.tick()
    assert node.writer.take_raised() == {LIMIT: Raised(600 * W, UNKNOWN)}


@pytest.mark.parametrize(
    "value", [150 * W, 100 * W, 61 * W, 0], ids=["captured", "an earlier one of ours", "near", "0"]
)
def test_values_that_look_like_ours_or_like_less_are_put_back_too(tmp_path, value):
    node = Node(tmp_path)
    node.tick(100)
    node.tick(60)
    node.files.put(LONG, value)
    assert node.tick()[0].status == "written" and node.at() == 60 * W
    assert node.writer.take_raised() == {LIMIT: Raised(value, UNKNOWN)}


@pytest.mark.parametrize(
    ("path", "loose", "strict"),
    [(ENABLED, 0, 1), (WINDOW, 400_000_000, 976), (SHORT, 900 * W, 100 * W), (SHORT_WINDOW, 400_000_000, 976)],
)
def test_what_makes_a_limit_void_is_put_back_and_a_stricter_value_stays(tmp_path, path, loose, strict):
    node = Node(tmp_path)
    found = node.at(path)
    node.tick()
    node.files.put(path, loose)
    (outcome,) = node.tick()
    assert (outcome.status, outcome.reason, node.at(path), node.at()) == ("written", "foreign writer", found, 60 * W)
    assert outcome.detail.startswith("ALARM: somebody (unknown) moved ")
    assert node.writer.take_raised() == {LIMIT: Raised(0, UNKNOWN)}, "as if nothing limited it"
    node.files.put(path, strict)
    assert node.tick()[0].status == "unchanged" and node.at(path) == strict
    node.files.put(path, found if strict != found else loose)
    node.tick()
    assert node.at(path) == strict, "the strictest that anybody has set, as with ceilings"


def test_a_stricter_value_stays_and_is_no_excuse_to_raise_it_later(tmp_path):
    node = Node(tmp_path)
    node.tick(110)
    node.files.put(LONG, 80 * W)
    assert node.tick(110)[0].status == "foreign" and node.at() == 80 * W
    node.files.put(LONG, 700 * W)
    node.tick(110)
    assert node.at() == 80 * W, "set again, to what the other one had limited it to"


def test_a_stricter_value_that_is_above_a_lower_cap_gives_way_at_once(tmp_path):
    node = Node(tmp_path)
    node.tick(110)
    node.files.put(LONG, 80 * W)
    node.tick(110)
    assert node.tick(60, after_s=0.1)[0].status == "written" and node.at() == 60 * W
    node.tick(120)
    assert node.at() == 80 * W, "it is still the highest that may be set"


def test_a_value_that_the_look_first_sees_after_the_cap_was_lowered_is_overwritten(tmp_path):
    node = Node(tmp_path)
    node.tick(120)
    node.files.put(LONG, 100 * W)
    assert node.tick(60, after_s=0.1)[0].status == "written" and node.at() == 60 * W
    assert node.writer.ceilings.values[LIMIT] == 100 * W


def test_who_writes_between_our_write_and_our_look_is_overwritten_or_counted_and_never_taken_for_the_driver(tmp_path):
    node = Node(tmp_path)
    node.tick(120)
    write, after = node.files.write, [1]

    def and_somebody_else(path: str, text: str) -> None:
        write(path, text)
        if path == LONG and after[0] > 0:
            after[0] -= 1
            node.files.put(LONG, 700 * W)

    node.files.write = and_somebody_else
    assert node.tick(60)[0].status == "written" and node.at() == 60 * W, "at once"
    after[0] = 1 << 30
    found = node.tick(50)[0]
    assert (found.status, found.reason) == ("no-effect", "foreign writer") and "again and again" in found.detail
    assert node.writer.take_raised()[LIMIT].allowed == 700 * W
    after[0] = 0
    assert node.tick(50)[0].status == "written" and node.at() == 50 * W, "half a second later, and not a minute"
    node.writer.restore_all()
    assert node.at() == 150 * W


def test_files_that_are_as_they_were_found_are_each_read_once_and_no_more(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "node")
    knob = open_knob(system_ports(str(tree)), LIMIT)
    knob.set(60 * W)
    guard = CapGuard([knob], str(tree))
    guard.start()
    guard.follow({LIMIT: 60 * W}, clocks_too=False)
    looks, read_back = [], knob.read_back

    def look(goal_w: int = 60) -> tuple[list[int], int]:
        before = len(looks)
        guard.follow({LIMIT: goal_w * W}, clocks_too=False)
        above, _ = guard.look(0, {}, {})
        return [one.present for one in above], len(looks) - before

    monkeypatch.setattr(knob, "read_back", lambda: looks.append(0) or read_back())
    assert [look(), look(), look()] == [([], 1), ([], 0), ([], 0)]
    put(package_path(tree), 90 * W)  # what decides moves: limit, companion, goal
    assert [look(), look()] == [([90 * W], 1)] * 2
    put(package_path(tree), 60 * W)
    assert [look(), look()] == [([], 1), ([], 0)]
    put(tree / "sys/class/powercap/intel-rapl:0/enabled", 0)
    assert look() == ([0], 1)
    put(tree / "sys/class/powercap/intel-rapl:0/enabled", 1)
    assert [look(50), look(70), look(70)] == [([60 * W], 1), ([], 1), ([], 1)]  # below its goal it is somebody's
    assert look() == ([], 0)
    with monkeypatch.context() as gone:
        gone.setattr(OsKeptFile, "read", raise_gone)
        assert look() == ([], 1)
    guard.close()


def raise_gone(*_: object) -> bytes:
    raise OSError(errno.ENODEV, "gone")


def test_a_look_in_its_turn_does_not_make_the_next_one_wait_but_one_after_a_write_does(tmp_path):
    tree = make_tree(tmp_path / "node")
    knob = open_knob(system_ports(str(tree)), LIMIT)
    guard = CapGuard([knob], str(tree))
    guard.follow({LIMIT: 60 * W}, clocks_too=False)
    if guard.descriptor < 0:
        pytest.skip("this kernel does not report writes to this user (fanotify, CAP_SYS_ADMIN)")
    guard.look(S, {}, {})
    assert (guard.pause_ns(S + 1), guard.left_ns(S + 1)) == (0, LOOK_NS - 1)
    subprocess.run(["sh", "-c", f"echo 1 > {package_path(tree)}"], check=True)
    guard.hear()
    assert guard.left_ns(S + 2) == 0
    guard.look(S + 2, {}, {})
    assert guard.pause_ns(S + 3) == LEAST_NS - 1
    guard.close()


def test_each_attempt_comes_without_a_growing_pause(tmp_path):
    node = Node(tmp_path)
    node.tick()
    node.files.put(LONG, 700 * W)
    node.files.refusals[LONG] = 16  # EBUSY
    for _ in range(20):
        assert node.tick(after_s=0.5)[0].status == "refused"
        assert node.writer.take_raised() == {LIMIT: Raised(700 * W, UNKNOWN)}
    del node.files.refusals[LONG]
    assert node.tick(after_s=0.5)[0].status == "written" and node.at() == 60 * W


def test_a_knob_that_enforces_a_cap_is_looked_at_within_a_second_next_to_384_clocks(tmp_path):
    node = Node(tmp_path, policies=384)
    clocks = {f"policy{n}": 1_200_000 for n in range(384)}
    node.tick(**clocks)
    for _ in range(3):
        node.files.put(LONG, 700 * W)
        for _ in range(9):
            node.tick(after_s=0.1, **clocks)
        assert node.at() == 60 * W


def test_where_only_clocks_enforce_a_cap_they_are_guarded_and_else_they_belong_to_who_has_set_them(tmp_path):
    node = Node(tmp_path)
    node.tick(policy0=1_200_000)
    node.files.put(limit_path(0), MAX_KHZ - 1)
    for _ in range(4):
        node.tick(policy0=1_200_000)
    assert node.at(limit_path(0)) == MAX_KHZ - 1
    node = Node(tmp_path / "other")
    node.tick(clocks_too=True, policy0=1_200_000)
    for _ in range(5):
        node.files.put(limit_path(0), MAX_KHZ)
        node.tick(clocks_too=True, policy0=1_200_000)
        assert node.at(limit_path(0)) == 1_200_000
        assert node.writer.take_raised() == {CLOCK: Raised(0, UNKNOWN)}


def test_a_full_disk_does_not_keep_a_limit_from_being_set_again(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.tick()

    def full(*_: object) -> None:
        raise SaveError("the disk is full")

    for name in ("wrote", "rewrite", "compact"):
        monkeypatch.setattr(node.writer._save, name, full)
    node.files.put(LONG, 700 * W)
    assert node.tick()[0].status == "written" and node.at() == 60 * W


@pytest.mark.parametrize("value", [700 * W, 100 * W, 0])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_value_above_the_cap_does_not_outlive_the_run(tmp_path, value, is_killed):
    node = Node(tmp_path)
    node.tick()
    node.files.put(LONG, value)
    node.files.put(ENABLED, 0)
    if is_killed:
        node.writer.close()
        found = restore_saved(node.save, "boot", lambda name: open_knob(node.ports, name)).outcomes
    else:
        found = node.writer.restore_all()
    assert [one.status for one in found] == ["restored"]
    assert node.at(ENABLED) == 1
    assert node.at() == (100 * W if value == 100 * W and not is_killed else 150 * W), "never above what others have set"


def test_a_cap_that_ends_gives_a_raised_limit_back_to_the_site(tmp_path):
    node = Node(tmp_path)
    node.tick()
    node.files.put(LONG, 700 * W)
    assert node.tick(0)[0].status == "restored" and node.at() == 150 * W


def test_limits_in_watts_are_for_caps_and_clocks_are_for_policies():
    caps = ("rapl/package-0/long_term_uw", "gpu/3/power_limit_mw", "scmi+shm:/run/x#package/cap_mw")
    assert all(is_for_caps(name) for name in caps)
    assert not any(is_for_caps(name) for name in (CLOCK, "gpu/0/sm_clock_mhz", "scmi+shm:/run/x#package/limit_khz"))


# --- who it was


def test_each_program_that_raises_a_limit_is_logged_and_the_same_one_again_after_a_minute():
    clock, said = StillClock(), []
    notices = Notices(clock, said.append)
    for name, after_s in (("dd (process 1)", 0), ("dd (process 2)", 1), ("sh (process 3)", 1), ("dd (process 4)", 61)):
        clock.time_ns += after_s * S
        notices.report([Outcome(LIMIT, "written", f"ALARM: {name} set it", "foreign writer", name)])
    assert [line.partition("ALARM: ")[2].split()[0] for line in said] == ["dd", "sh", "dd"]


def test_a_process_is_named_as_far_as_it_can_be_seen():
    assert described(os.getpid()).endswith(f"(process {os.getpid()}, user {os.geteuid()})")
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert described(ended.pid) == f"process {ended.pid}, which has ended or is hidden"
    assert described(0) == "a process outside of this container"


def test_the_kernel_names_who_has_written_a_file_and_not_this_process(tmp_path):
    writers, path = LastWriters(), tmp_path / "limit"
    if writers.descriptor < 0:
        pytest.skip("this kernel does not report writes to this user (fanotify, CAP_SYS_ADMIN)")
    path.write_text("1")
    writers.watch([str(path), str(tmp_path / "not there")])
    path.write_text("2")
    assert not writers.read() and writers.of(str(path)) == UNKNOWN
    with subprocess.Popen(["sh", "-c", f"echo 3 >{path}; read end"], stdin=subprocess.PIPE) as shell:
        assert within(PATIENCE_S, writers.read)
        assert writers.of(str(path)).startswith(f"sh (process {shell.pid}")
    writers.close()
    assert not writers.read()


def test_a_writer_process_puts_a_limit_back_between_two_requests_and_names_who_set_it(tmp_path):
    tree = make_tree(tmp_path / "node")
    writer = writer_on(tree, tmp_path / "state", lock=tmp_path / "lock")
    writer.start()
    writer.lease_s = 300.0
    writer.apply({LIMIT: 60 * W})
    command = ["sh", "-c", f"echo {700 * W} >{package_path(tree)}; echo; read end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout and shell.stdout.readline()
        assert within(PATIENCE_S, lambda: package_path(tree).read_text().strip() == str(60 * W)), "without a request"
        (found,) = writer.apply({LIMIT: 60 * W})
        raised = writer.take_raised()
    assert raised[LIMIT].allowed == 200 * W, "the hardware takes no more"
    is_named = LastWriters().descriptor >= 0
    assert found.by.startswith("sh (process" if is_named else UNKNOWN) and raised[LIMIT].by == found.by
    writer.restore_all()
    writer.close()
    assert package_path(tree).read_text().strip() == str(150 * W)


def test_a_loop_of_writes_does_not_keep_a_writer_process_from_its_requests(tmp_path):
    tree = make_tree(tmp_path / "node")
    writer = writer_on(tree, tmp_path / "state", lock=tmp_path / "lock")
    writer.start()
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            put(package_path(tree), 700 * W)

    thread = threading.Thread(target=write)
    writer.apply({LIMIT: 60 * W})
    thread.start()
    seen = 0
    try:
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s:
            writer.apply({LIMIT: 60 * W})
            seen += bool(writer.take_raised())
            time.sleep(0.05)
    finally:
        over.set()
        thread.join()
    assert seen >= 2

    def is_back() -> bool:
        return writer.apply({LIMIT: 60 * W})[0].status == "unchanged" and package_path(tree).read_text() == f"{60 * W}"

    assert within(PATIENCE_S, is_back)
    writer.restore_all()
    writer.close()


assert LOOK_NS < S
