"""The commands of ``clusterctl``, one module each, imported when called."""
