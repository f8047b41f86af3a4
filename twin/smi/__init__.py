"""The command ``nvidia-smi`` of a served twin: our own program over NVML, with what monitoring programs use of it."""
