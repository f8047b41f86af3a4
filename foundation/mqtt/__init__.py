"""Publishing to a broker of MQTT in the naming of ExaMon, and fetching from it.

Imports nothing of ours but ``foundation.shell``. Whoever controls anything never calls it: publishing is a process of
its own. ``paho`` is imported by ``broker_link`` alone, so that settings can be read without it.
"""
