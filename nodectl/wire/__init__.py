"""What a node and the cluster agent say to each other: message types, their limits, and keys.

Imports nothing of ours but ``nodectl.shell``. Both ends use these types; neither end may add its own.
"""
