"""SCMI messages as bytes (DEN0056 4.1): header, values, status codes, and what people read of them.

Imports nothing of ours but ``firmware_bridge.errors``.
"""
