"""``nodectl scmi`` as a user meets it: over ptys and shared memory, with the right, the wrong or no other end."""

import json
import os
import subprocess
import sys
import time

import pytest

from nodectl.cli import main
from tests.scmi.frame_device import PtyDevice
from tests.scmi.mailbox_device import MailboxDevice
from tests.scmi.small_platform import u32
from tests.waiting import PATIENCE_S, within


@pytest.fixture
def device(tmp_path):
    device = MailboxDevice(str(tmp_path / "scmi.sock"))
    yield device
    device.close()


@pytest.fixture
def url(device, tmp_path) -> str:
    return f"scmi+shm:{tmp_path / 'scmi.sock'}"


@pytest.fixture
def scmi(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # no table is wrapped, however narrow the terminal

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["scmi", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_a_message_is_said_in_words(scmi):
    expected = "POWERCAP_CAP_SET command, token 0: domain 1, flags 0x0, cap 100000\n"
    assert scmi("decode", "05600000 01000000 00000000 a0860100") == (0, expected, "")
    assert scmi("decode", "0x6005", "0x1", "0x0", "0x186a0") == (0, expected, "")
    said = scmi("decode", "--json", "0x6006", "0x0", "0x1f4", "--from", "platform")[1]
    assert json.loads(said)[0]["values"] == {"pai_us": 500}


def test_a_message_that_two_may_have_sent_is_read_both_ways(scmi):
    status, out, _ = scmi("decode", "0x6004", "0xfffffffa")
    assert status == 0
    assert out.splitlines() == [
        "POWERCAP_CAP_GET command, token 0: domain 4294967290",
        "POWERCAP_CAP_GET response, token 0: BUSY: the resource is busy",
    ]


def test_an_older_version_can_be_spoken(scmi):
    words = ("0x4c04", "0x0", "0x1", "0x1", "0x2", "0x3")
    assert scmi("decode", *words)[0] == 1
    status, out, _ = scmi("decode", *words, "--speak", "performance=0x30000")
    assert (status, out.count("level 1")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["decode", "zz"], 2, "'zz' is not hexadecimal"),
        (["decode", "123"], 2, "an odd number of digits"),
        (["decode", "0x6005"], 1, "POWERCAP_CAP_SET command: payload of 0 bytes instead of 12 (if from the agent); "),
        (["decode", "0x6004", "0x0", "--speak", "powrcap=0x10000"], 2, "no protocol is called 'powrcap' (nearest: "),
        (["decode", "0x6004", "0x0", "--speak", "base=0x1"], 2, "base is spoken in versions 0x20000 and 0x20001"),
        (["ping", "scmi+sehm:/x"], 2, "'scmi+sehm:/x' is not an SCMI URL (nearest: scmi+shm:)"),
        (["ping", "scmi+shm:"], 2, "the path of the controller's socket is missing"),
        (["ping", "scmi+serial:"], 2, "the device is missing"),
        (["ping", "scmi+serial:///dev/x?baud=fast"], 2, "baud 'fast' is not a number"),
        (["ping", "scmi+serial:///dev/x?baud=99999999999"], 2, "baud '99999999999' is not a number"),
        (["ping", "scmi+serial:socket://host"], 2, "the port is missing, e.g. scmi+serial:socket://host:4000"),
        (["ping", "scmi+serial:socket://host:x"], 2, "the port is missing"),
        (["ping", "scmi+serial:nonsense://x"], 2, "protocol 'nonsense' not known"),
        (["ping", "scmi+serial:///dev/x?speed=9600"], 2, "a device has no option 'speed'; it has baud and slowdown"),
        (["ping", "scmi+serial:///dev/x?slowdown=0"], 2, "slowdown '0' is not a factor from 1 to 1000000"),
        (["discover", "scmi+serial:///dev/no-such-port"], 1, "No such file or directory (is it plugged in?)"),
        (["discover", f"scmi+serial://{__file__}"], 1, "cannot be opened: it is not a serial device"),
        (["discover", "scmi+serial:///dev/null"], 1, "cannot be opened: it is not a serial device"),
        (["discover", "scmi+shm:/no/such.sock"], 1, "cannot connect to /no/such.sock: No such file or directory"),
        (["discover", f"scmi+shm:{__file__}"], 1, "Connection refused (does a controller serve it?)"),
        (["discover", "scmi+serial:loop://"], 1, "the line returns what is sent: RX and TX are connected"),
        (["cap", "scmi+shm:/x", "0", "120"], 2, "'120': has no unit; write a power such as 120W"),
        (["cap", "scmi+shm:/x", "0", "0W"], 2, "would disable capping; use --disable if that is meant"),
        (["cap", "scmi+shm:/x", "0"], 2, "give either a cap such as 120W or --disable"),
        (["cap", "scmi+shm:/x", "0", "9W", "--disable"], 2, "give either a cap such as 120W or --disable"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(scmi, arguments, status, expected):
    got, out, err = scmi(*arguments)
    assert (got, out, err.count("\n")) == (status, "", 1)
    assert err.startswith("nodectl scmi: ") and expected in err


def test_a_controller_is_listed(scmi, url):
    status, out, _ = scmi("discover", url)
    assert status == 0
    assert "tests  0x7, seen as agent 1 (agent-1) of agent-1, agent-2" in out
    assert "30.5 W to 300 W in steps of 0.5 W" in out and "400 to 3660 MHz, 5 levels" in out
    found = json.loads(scmi("discover", url, "--json")[1])
    assert [domain["name"] for domain in found["power"]] == ["package", "domain-0"]
    assert len(found["performance"][0]["levels"]) == 5


def test_a_cap_is_set_refused_and_disabled_by_hand(scmi, url, device):
    assert scmi("cap", url, "package", "100.4W") == (0, "package: 100.4 W requested, 100 W sent, 100 W enforced\n", "")
    status, _, err = scmi("cap", url, "package", "400W")
    assert status == 1
    assert "OUT_OF_RANGE" in err and "power domain 0 (package) takes 30.5 W to 300 W" in err
    assert device.platform.enforced(0) == 100_000
    assert json.loads(scmi("cap", url, "0", "90W", "--json")[1])["enforced_w"] == 90
    assert scmi("cap", url, "0", "--disable")[1] == "package: cap withdrawn, capping is disabled\n"
    assert "nearest: package" in scmi("cap", url, "pakage", "90W")[2]


def test_an_accepted_cap_that_does_not_show_is_status_1(scmi, url, device):
    device.platform.caps_ignored = True
    status, _, err = scmi("cap", url, "0", "90W")
    assert status == 1 and "was accepted, but the controller reports disabled" in err


def test_values_are_read_all_or_by_name(scmi, url):
    status, out, _ = scmi("get", url)
    assert status == 0
    assert "120 W over 1000 us" in out and "-5 C" in out and "capping is disabled" in out
    assert json.loads(scmi("get", url, "power:package", "--json")[1]) == [
        {"what": "power:0", "name": "package", "value": 120_000, "unit": "mW", "text": "120 W over 1000 us"}
    ]
    assert scmi("get", url, "sensr")[0] == 2
    assert "no sensor '7'; there are 0 (power), 1 (temperature)" in scmi("get", url, "sensor:7")[2]


def test_levels_limits_and_intervals_are_set_and_read_back(scmi, url, device):
    status, out, _ = scmi("set", url, "level:0=2.5GHz", "limits:0=400MHz..2400MHz", "pai:0=2ms")
    level = "voltage domain 0 with a long name: 2400 MHz requested, 2400 MHz in force"
    assert (status, out.splitlines()[0]) == (0, level)
    device.platform.levels[0, 2] = 3_660_000
    status, out, _ = scmi("set", url, "level:0=800MHz", "--json")
    assert status == 1 and json.loads(out)[0]["in_force"] == 3_660_000
    assert "caps are set by" in scmi("set", url, "cap:0=90W")[2]
    assert "is not a range such as" in scmi("set", url, "limits:0=400MHz")[2]
    assert "'levl' cannot be set (nearest: level)" in scmi("set", url, "levl:0=1GHz")[2]


def test_round_trips_are_measured(scmi, url):
    status, out, _ = scmi("ping", url, "--count", "20", "--json")
    figures = json.loads(out)
    assert (status, figures["sent"], figures["lost"]) == (0, 20, 0)
    assert 0 < figures["round_trip_us"]["median"] <= figures["round_trip_us"]["p99"]


def test_every_message_of_a_conversation_is_shown(scmi, url):
    status, out, _ = scmi("trace", url, "cap:0")
    lines = out.splitlines()
    assert status == 0 and lines[0].split()[1] == ">"
    assert "POWERCAP_CAP_GET response, token" in lines[-1]
    shown = [json.loads(line) for line in scmi("trace", url, "cap:0", "--json")[1].splitlines()]
    assert [one["from"] for one in shown[:2]] == ["agent", "platform"]
    assert shown[-1]["values"] == {"cap": 0}


def test_changes_by_another_agent_are_watched(url, device):
    watch = subprocess.Popen([sys.executable, "-m", "nodectl.cli", "scmi", "watch", url, "--count", "1", "--json"],
                             stdout=subprocess.PIPE, text=True)  # fmt: skip
    deadline_s = time.monotonic() + PATIENCE_S
    while ("level", 1, 1) not in device.platform.watches and time.monotonic() < deadline_s:
        time.sleep(0.01)
    device.platform.answer(2, u32(0x6005, 1, 0, 70_000))
    out, _ = watch.communicate(timeout=PATIENCE_S)
    assert watch.returncode == 0
    assert json.loads(out)["values"] == {"agent": 2, "domain": 1, "cap": 70_000, "pai_us": 500}
    assert within(PATIENCE_S, lambda: not device.platform.watches), "nobody is subscribed any more"


def test_one_late_answer_at_the_end_of_a_watch_leaves_no_subscription(url, device):
    watch = subprocess.Popen([sys.executable, "-m", "nodectl.cli", "scmi", "watch", url, "--count", "1"])
    assert within(PATIENCE_S, lambda: ("level", 1, 1) in device.platform.watches)

    def answer_late(server, agent, answer):
        time.sleep(0.15)  # longer than a client waits for an answer, and then for the mailbox
        server.answer(agent, answer)

    device.faults.append(answer_late)
    device.platform.answer(2, u32(0x6005, 1, 0, 70_000))
    assert watch.wait(timeout=PATIENCE_S) == 0
    assert within(PATIENCE_S, lambda: not device.platform.watches)


def test_an_unplugged_cable_ends_the_command_within_two_seconds(scmi):
    ours, theirs = os.openpty()
    begin_s = time.monotonic()
    try:
        status, _, err = scmi("discover", f"scmi+serial://{os.ttyname(theirs)}?baud=921600")
    finally:
        os.close(ours)
        os.close(theirs)
    assert time.monotonic() - begin_s < 2
    assert status == 1 and "nothing was received (cable, power, or the wrong port?)" in err


def test_a_controller_on_a_serial_line_is_capped(scmi):
    device = PtyDevice()
    status, out, _ = scmi("cap", f"scmi+serial://{device.path}?baud=921600", "package", "90W")
    device.close()
    assert (status, out) == (0, "package: 90 W requested, 90 W sent, 90 W enforced\n")
