"""The first of our modules that the command ``clusterctl`` runs (``foundation.shell.start``)."""

from foundation.shell.start import start


def clusterctl() -> int:
    """The command ``clusterctl``."""
    return start("clusterctl", "cluster_agent.cli")
