"""SCMI messages as bytes (DEN0056 4.1): header, values, status codes, and their text form for people.

Imports nothing of ours but ``firmware_bridge.errors``.
"""
