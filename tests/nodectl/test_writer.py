"""The writer on a node of plain files: what is captured when, what is written, and what is put back."""

import errno
import json
import os
import signal
import zlib
from pathlib import Path

import pytest

from nodectl.knobs import open_knob
from nodectl.write.restore import restore_saved
from nodectl.write.saves import SaveError, read_save
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import MAX_KHZ, POWERCAP, file_node, limit_path, reopen

BOOT = "0f0e-this-boot"
NAMES = [f"cpu/policy{policy}/max_khz" for policy in range(4)]
LONG_TERM = "rapl/package-0/long_term_uw"


@pytest.fixture
def node(tmp_path):
    return file_node(tmp_path / "node")


@pytest.fixture
def save_path(tmp_path):
    return str(tmp_path / "state" / "captured.jsonl")


def writer_for(node, save_path, names=(*NAMES, LONG_TERM)):
    return Writer([open_knob(node, name) for name in names], save_path, BOOT, node.clock)


def limits(node):
    return [int(node.files.read(limit_path(policy))) for policy in range(4)]


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def wait(node, seconds):
    node.clock.sleep_until_ns(node.clock.now_ns() + round(seconds * 1e9))


def test_a_run_leaves_every_knob_as_it_was(node, save_path):
    with writer_for(node, save_path) as writer:
        assert statuses(writer.apply({NAMES[0]: 1_200_000, LONG_TERM: 90_000_000})) == ["written", "written"]
        assert limits(node)[0] == 1_200_000
    assert limits(node) == [MAX_KHZ] * 4
    assert node.files.read(f"{POWERCAP}/intel-rapl:0/constraint_0_power_limit_uw") == "150000000\n"
    assert not os.path.exists(save_path)


def test_the_first_value_is_on_the_disk_before_the_first_write(node, save_path):
    seen = []
    write = node.files.write

    def watching_write(path, text):
        seen.append(read_save(save_path).knobs[NAMES[1]].value)
        write(path, text)

    node.files.write = watching_write
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[1]: 1_500_000})
    assert seen == [str(MAX_KHZ)]


def test_a_save_names_schema_boot_and_knob_on_every_line(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    lines = [json.loads(line.split(" ", 1)[1]) for line in Path(save_path).read_text().splitlines()]
    assert [(line["kind"], line["v"], line["boot"]) for line in lines] == [
        ("head", 2, BOOT), ("capture", 2, BOOT), ("wrote", 2, BOOT)
    ]  # fmt: skip
    assert lines[1]["knob"] == NAMES[0]


def test_knobs_are_restored_in_the_reverse_order_of_their_capture(node, save_path):
    with writer_for(node, save_path) as writer:
        for policy in (2, 0, 3):
            writer.apply({NAMES[policy]: 1_200_000})
        node.files.log.clear()
    assert [path for path, _ in node.files.log] == [limit_path(policy) for policy in (3, 0, 2)]


def test_an_exception_restores_too(node, save_path):
    with pytest.raises(ZeroDivisionError), writer_for(node, save_path) as writer:
        writer.apply(dict.fromkeys(NAMES, 1_200_000))
        raise ZeroDivisionError
    assert limits(node) == [MAX_KHZ] * 4


def test_nothing_is_written_while_a_value_cannot_be_saved(node, tmp_path):
    (tmp_path / "state").write_text("a file where the directory should be")
    writer = writer_for(node, str(tmp_path / "state" / "captured.jsonl"))
    outcome = writer.apply({NAMES[0]: 1_200_000})[0]
    assert outcome.status == "refused" and "captured.jsonl" in outcome.detail
    assert node.files.log == []


def test_a_value_already_there_is_not_written_again(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    node.files.log.clear()
    assert statuses(writer.apply({NAMES[0]: 1_200_000})) == ["unchanged"]
    assert node.files.log == []


def test_zero_puts_a_knob_back_and_keeps_its_capture(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    assert statuses(writer.apply({NAMES[0]: 0})) == ["unchanged"]
    writer.apply({NAMES[0]: 1_200_000})
    assert statuses(writer.apply({NAMES[0]: 0})) == ["restored"]
    assert limits(node)[0] == MAX_KHZ
    assert writer.captured == {NAMES[0]: str(MAX_KHZ)}
    assert statuses(writer.apply({NAMES[0]: 0})) == ["unchanged"]


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (errno.EINVAL, "refused", "out of range"),
        (errno.EBUSY, "refused", "busy"),
        (errno.EACCES, "refused", "permission"),
        (errno.ENODATA, "refused", "locked"),
        (errno.ENODEV, "vanished", "gone"),
    ],
)
def test_a_refusal_is_an_outcome_and_the_other_knobs_are_still_written(node, save_path, number, status, words):
    node.files.refusals[limit_path(1)] = number
    writer = writer_for(node, save_path)
    writer.start()
    outcomes = writer.apply(dict.fromkeys(NAMES, 1_200_000))
    assert statuses(outcomes) == ["written", status, "written", "written"]
    assert words in outcomes[1].detail and limit_path(1) in outcomes[1].detail


def test_a_knob_that_refused_is_tried_again_later_and_ever_less_often(node, save_path):
    attempts = []
    write = node.files.write
    node.files.write = lambda path, text: (attempts.append(node.clock.now_ns()), write(path, text))
    node.files.refusals[limit_path(0)] = errno.EBUSY
    writer = writer_for(node, save_path)
    writer.start()
    for _ in range(80):
        assert statuses(writer.apply({NAMES[0]: 1_200_000})) == ["refused"]
        wait(node, 0.1)
    assert [round((later - attempts[0]) / 1e9) for later in attempts] == [0, 1, 3, 7]
    node.files.refusals.clear()
    wait(node, 60)
    assert statuses(writer.apply({NAMES[0]: 1_200_000})) == ["written"]


def test_another_value_is_tried_at_once(node, save_path):
    node.files.refusals[limit_path(0)] = errno.EINVAL
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 100})
    node.files.refusals.clear()
    assert statuses(writer.apply({NAMES[0]: 1_200_000})) == ["written"]


def test_a_write_without_effect_is_found_by_reading_back(node, save_path):
    node.files.deaf.add(limit_path(0))
    writer = writer_for(node, save_path)
    writer.start()
    outcome = writer.apply({NAMES[0]: 1_200_000})[0]
    assert (outcome.status, outcome.reason) == ("no-effect", "firmware")
    assert "1200000" in outcome.detail and str(MAX_KHZ) in outcome.detail


def test_a_limit_of_the_firmware_is_named(node, save_path):
    node.files.deaf.add(limit_path(0))
    node.files.put(limit_path(0), 2_000_000)
    node.files.put(limit_path(0).replace("scaling_max_freq", "bios_limit"), 2_000_000)
    writer = writer_for(node, save_path)
    writer.start()
    outcome = writer.apply({NAMES[0]: 2_800_000})[0]
    assert (outcome.status, outcome.reason) == ("no-effect", "firmware")
    assert "bios_limit" in outcome.detail


def test_a_limit_lowered_by_temperature_is_not_taken_for_somebody_elses(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 2_400_000})
    node.files.put("/sys/class/thermal/cooling_device0/type", "thermal-cpufreq-0")
    node.files.put("/sys/class/thermal/cooling_device0/cur_state", 3)
    node.files.put(limit_path(0), 1_800_000)
    outcomes = writer.restore_all()
    assert statuses(outcomes) == ["restored"]
    assert limits(node)[0] == MAX_KHZ


def test_a_foreign_value_is_found_left_alone_and_reported(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000, NAMES[1]: 1_200_000})
    node.files.put(limit_path(0), 2_000_000)
    outcome = writer.apply({NAMES[0]: 1_300_000, NAMES[1]: 1_300_000})[0]
    assert (outcome.status, outcome.reason) == ("foreign", "foreign writer")
    assert limits(node)[:2] == [2_000_000, 1_300_000]
    restored = {outcome.knob: outcome.status for outcome in writer.restore_all()}
    assert restored == {NAMES[0]: "left", NAMES[1]: "restored"}
    assert limits(node)[:2] == [2_000_000, MAX_KHZ]
    assert not os.path.exists(save_path)


def test_a_foreign_value_is_found_even_while_nothing_changes(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    wish = dict.fromkeys(NAMES, 1_200_000)
    writer.apply(wish)
    node.files.put(limit_path(3), 2_000_000)
    found = [outcome for _ in range(3) for outcome in writer.apply(wish) if outcome.status == "foreign"]
    assert {outcome.knob for outcome in found} == {NAMES[3]}


def test_a_knob_that_is_put_back_to_its_first_value_while_nothing_changes_is_noticed_and_set_again(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    wish = dict.fromkeys(NAMES, 1_200_000)
    writer.apply(wish)
    node.files.put(limit_path(3), MAX_KHZ)
    found = [outcome for _ in range(3) for outcome in writer.apply(wish) if outcome.status == "foreign"]
    assert {(outcome.knob, outcome.reason) for outcome in found} == {(NAMES[3], "foreign writer")}
    assert found[0].detail == f"somebody else put it back to {MAX_KHZ} kHz; it is set again later"
    wait(node, 2)
    assert statuses(writer.apply(wish)) == ["unchanged"] * 3 + ["written"]
    assert limits(node) == [1_200_000] * 4
    writer.restore_all()
    assert limits(node) == [MAX_KHZ] * 4


def test_a_knob_given_back_by_the_other_writer_is_ours_again(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    node.files.put(limit_path(0), 2_000_000)
    assert statuses(writer.apply({NAMES[0]: 1_300_000})) == ["foreign"]
    node.files.put(limit_path(0), MAX_KHZ)
    wait(node, 61)
    assert statuses(writer.apply({NAMES[0]: 1_300_000})) == ["written"]


def test_some_knobs_can_be_put_back_while_the_rest_goes_on(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_200_000))
    assert statuses(writer.restore([NAMES[1]])) == ["restored"]
    assert limits(node) == [1_200_000, MAX_KHZ, 1_200_000, 1_200_000]
    assert list(read_save(save_path).knobs) == [NAMES[0], NAMES[2], NAMES[3]]


def test_a_knob_left_to_somebody_is_not_captured_again(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    node.files.put(limit_path(0), 2_000_000)
    assert statuses(writer.restore([NAMES[0]])) == ["left"]
    wait(node, 3600)
    assert statuses(writer.apply({NAMES[0]: 1_300_000})) == ["foreign"]
    assert limits(node)[0] == 2_000_000


def test_a_knob_that_cannot_be_restored_stays_in_the_save_and_the_others_go_back(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_200_000))
    node.files.refusals[limit_path(2)] = errno.EBUSY
    assert sorted(statuses(writer.restore_all())) == ["refused", "restored", "restored", "restored"]
    writer.close()
    assert {name: saved.value for name, saved in read_save(save_path).knobs.items()} == {NAMES[2]: str(MAX_KHZ)}
    node.files.refusals.clear()
    again = writer_for(node, save_path)
    assert statuses(again.start().outcomes) == ["restored"]
    assert limits(node) == [MAX_KHZ] * 4


def test_an_earlier_save_is_restored_first_and_never_overwritten(node, save_path):
    killed = writer_for(node, save_path)
    killed.start()
    killed.apply({NAMES[0]: 1_200_000})
    killed.close()
    node.files.refusals[limit_path(0)] = errno.EBUSY
    writer = writer_for(reopen(node.files), save_path)
    assert statuses(writer.start().outcomes) == ["refused"]
    node.files.refusals.clear()
    writer.apply({NAMES[0]: 1_400_000})
    assert writer.captured == {NAMES[0]: str(MAX_KHZ)}
    assert read_save(save_path).knobs[NAMES[0]].value == str(MAX_KHZ)
    writer.restore_all()
    assert limits(node)[0] == MAX_KHZ


def test_a_second_signal_waits_until_the_knobs_are_back(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_200_000))
    write = node.files.write

    def interrupted_write(path, text):
        signal.raise_signal(signal.SIGINT)
        write(path, text)

    node.files.write = interrupted_write
    with pytest.raises(KeyboardInterrupt):
        writer.restore_all()
    assert limits(node) == [MAX_KHZ] * 4


def test_restoring_twice_does_nothing_more(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    writer.restore_all()
    node.files.log.clear()
    assert writer.restore_all() == []
    assert node.files.log == []


def test_an_unknown_knob_is_an_outcome(node, save_path):
    writer = writer_for(node, save_path)
    assert statuses(writer.apply({"cpu/policy99/max_khz": 1, "gpu/3/sm_clock_mhz": 0})) == ["vanished", "unchanged"]


def test_a_vanished_knob_comes_back_after_a_while(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    os.unlink(node.files.root / limit_path(0).lstrip("/"))
    assert statuses(writer.apply({NAMES[0]: 1_300_000})) == ["vanished"]
    node.files.put(limit_path(0), MAX_KHZ)
    wait(node, 2)
    assert statuses(writer.apply({NAMES[0]: 1_300_000})) == ["written"]


def test_the_save_is_compacted_before_it_grows_without_bound(node, save_path, monkeypatch):
    monkeypatch.setattr("nodectl.write.saves.COMPACT_BYTES", 2_000)
    writer = writer_for(node, save_path)
    writer.start()
    for step in range(60):
        writer.apply({NAMES[0]: 1_200_000 + 1_000 * step, NAMES[1]: 1_300_000 + 1_000 * step})
        assert os.path.getsize(save_path) < 4_000
    writer.close()
    state = read_save(save_path)
    assert state.problems == []
    assert state.knobs[NAMES[0]].ours == (1_258_000, 1_259_000)
    restore_saved(save_path, BOOT, lambda name: open_knob(node, name))
    assert limits(node) == [MAX_KHZ] * 4


def test_a_save_of_a_newer_version_stops_the_start(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    payload = b'{"kind":"capture","v":3,"boot":"x","knob":"k","value":"1"}'
    with open(save_path, "ab") as file:
        file.write(b"%08x %s\n" % (zlib.crc32(payload), payload))
    with pytest.raises(SaveError, match="newer nodectl"):
        writer_for(node, save_path).start()


def test_a_knob_that_cannot_be_read_is_put_back_all_the_same(node, save_path):
    writer = writer_for(node, save_path)
    writer.start()
    writer.apply({NAMES[0]: 1_200_000})
    node.files.put(limit_path(0), "<unsupported>")
    assert statuses(writer.restore_all()) == ["restored"]
    assert limits(node)[0] == MAX_KHZ
