"""How messages pass between an agent and its platform: shared memory, a serial line, in process.

A transport carries bytes; it knows no protocol.
"""
