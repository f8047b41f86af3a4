"""What runs on the emulated node: workloads and their phases."""
