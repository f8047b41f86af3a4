"""A node manager becomes its own user, start after start, with the rights that systemd/jobs.conf leaves its agent."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = """
import sys
from pathlib import Path
from cluster_agent.dispatch.live.node_journal import NodeJournal
from cluster_agent.dispatch.live.own_user import become
from cluster_agent.fabric.allowed import FILE, Allowed
journal, keys = map(Path, sys.argv[1:])
list_ = Allowed(keys)
kept = NodeJournal(journal)
become("nobody", journal, keys / FILE, print)
list_.refresh()
kept.load(print)
(journal / "written").touch()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Everybody may pass through, as through /var/lib/nodectl."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("needs root, and setpriv")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_a_start_without_rights_over_other_users_files_works_again_and_again(place: Path) -> None:
    rights = re.findall(r"^CapabilityBoundingSet=(.+)", (ROOT / "systemd" / "jobs.conf").read_text(), re.MULTILINE)
    names = [name.removeprefix("CAP_").lower() for name in rights[-1].split()]
    assert "dac_override" not in names
    (place / "keys").mkdir()
    (place / "keys").chmod(0o755)
    (place / "keys" / "allowed").write_text("")
    (place / "keys" / "allowed").chmod(0o644)
    journal, nobody = place / "journal", pwd.getpwnam("nobody").pw_uid
    journal.mkdir(mode=0o700)
    for count in range(3):
        (journal / f"of root.{count}").touch(mode=0o600)
        (journal / "link").unlink(missing_ok=True)
        os.link(place / "keys" / "allowed", journal / "link")
        command = ["setpriv", f"--bounding-set=-all,+{',+'.join(names)}", sys.executable, "-c", START]
        done = subprocess.run(
            [*command, str(journal), str(place / "keys")], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        owners = {path.name: path.stat().st_uid for path in (journal, *journal.iterdir())}
        assert owners.pop("link") == 0, "a second name of a file is nobody's"
        assert set(owners.values()) == {nobody}
