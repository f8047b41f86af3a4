"""What is said of a machine on which the kernel of `make hil-linux` does not run."""

from __future__ import annotations

import pytest

from hil_tests.linux.machines import last_words

START = "Linux version 6.12.117\nKernel command line: mem=64M con=null panic=-1 LINE=4:1\n"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            f"{START}Run /init as init process\nuserspace - ptrace set fp regs failed, errno = 14\n"
            "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b\nCPU: 0\n",
            "userspace - ptrace set fp regs failed, errno = 14; "
            "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
        ),
        (f"{START}\n   \n", "Kernel command line: mem=64M con=null panic=-1 LINE=4:1"),
        ("Kernel panic - not syncing: no memory", "Kernel panic - not syncing: no memory"),
        ("", "it says nothing"),
    ],
)
def test_the_reason_is_the_panic_and_what_led_to_it_not_an_option_that_names_one(log: str, said: str) -> None:
    assert last_words(log) == said
