"""The protocol between a node and its cluster agent: message types, their limits, and keys.

Imports nothing of ours but ``foundation.shell``. Both ends use these types; neither end may add its own.
"""
