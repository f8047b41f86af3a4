"""The emulated `libnvidia-ml.so.1`: NVML as GPU tools know it, answered from the model (`csrc/twin_gpu.h`)."""
