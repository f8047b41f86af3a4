"""The emulated `libnvidia-ml.so.1`: the NVML API, with values from the model (`csrc/twin_gpu.h`)."""
