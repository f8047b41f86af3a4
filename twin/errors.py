"""The exception of the emulated node. Its message is one line that says what, where and what to do."""


class TwinError(Exception):
    """An invalid or unsupported machine, workload, key or request."""
