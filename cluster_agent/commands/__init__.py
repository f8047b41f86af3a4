"""The commands of ``clusterctl``, one module each, imported when called."""

import foundation.shell.single_thread  # noqa: F401  (before anything that imports numpy)
