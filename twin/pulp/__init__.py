"""The plant of the ControlPULP controller: 36 cores, their power and their heat."""
