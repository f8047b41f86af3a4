"""The longest path through the firmware's image: its worst case in cycles, under assumptions that runs check.

``control_flow``: functions, blocks and loops from the disassembly. ``loop_bounds``: how often each loop turns at most,
from its source. ``traces``: what each instruction took on a core in RTL, and how often loops turned there.
``longest_path``: the bound.
"""
