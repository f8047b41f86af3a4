"""The commands ``nodectl demo``, ``nodectl twin`` and ``clusterctl demo``, imported when called."""
