"""What the policies are made of: phases, curves of slowdown, the choice of the next clock.

Imports ``pmu`` types and each other. Pure, as the policies are.
"""
