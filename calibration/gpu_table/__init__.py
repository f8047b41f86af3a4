"""What does a program of the user's cost on this node's GPUs at each clock: watts of the cards, and speed?

May import calibration.limits, calibration.measure, nodectl and pmu. Runs the program and moves clock locks; knows no
kernels and no policies.
"""
