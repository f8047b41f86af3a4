"""How fast does a GPU compute, and is the result right? Kernels in PTX of our own, through CUDA's driver API.

May import calibration.kernels and nodectl. Needs no CUDA toolkit: the driver translates PTX.
"""
