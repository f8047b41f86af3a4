"""The emulated node's files: /sys and /proc with the kernel's contents and write semantics.

Imports ``twin.physics`` and ``twin.machine``. Knows nothing of FUSE or namespaces (``twin.serve``).
"""
