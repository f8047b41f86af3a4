"""The first of our modules that the command ``clusterctl`` runs (``nodectl.shell.start``)."""

from nodectl.shell.start import start


def clusterctl() -> int:
    """The command ``clusterctl``."""
    return start("clusterctl", "cluster_agent.cli")
