"""The emulated node's model-specific registers, and /dev/cpu/N/msr, by which programs read and write them.

Imports ``twin.files``: a register and a file of sysfs that mean the same thing show one state.
"""
