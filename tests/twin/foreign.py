"""Debian's programs that are not installed: scripts/foreign.sh unpacks them, and ``laid`` lays them over /usr, /etc and
/var of a mount namespace inside a run.
"""

from __future__ import annotations

from tests.twin.served_node import ROOT, ServedNode

FOREIGN = ROOT / "build" / "foreign"

LAY = f"""
set -e
laid=$(mktemp -d /run/laid-XXXXXX); mount -t tmpfs none $laid
for each in usr etc var; do
    mkdir -p $laid/$each.upper $laid/$each.work {FOREIGN}/root/$each
    layers=lowerdir={FOREIGN}/root/$each:/$each,upperdir=$laid/$each.upper,workdir=$laid/$each.work
    mount -t overlay none -o $layers /$each
done
unset LD_LIBRARY_PATH
PATH=/usr/bin:$PATH:/usr/sbin:/sbin
"""

DBUS = """
mkdir -p /run/dbus; rm -f /run/dbus/pid
dbus-uuidgen --ensure
dbus-daemon --system --fork 2>/dev/null
"""
"""Starts the system bus that daemons need, inside ``laid``."""


def why_not_foreign() -> str:
    """Empty if the programs are unpacked here, else the reason to skip."""
    return (
        "" if (FOREIGN / "complete").exists() else "Debian's programs are missing: unpack them with scripts/foreign.sh"
    )


def laid(node: ServedNode, script: str) -> str:
    """Standard output of a shell script that must succeed, where the programs are laid."""
    return node.output("unshare", "-m", "timeout", "200", "sh", "-c", LAY + script)
