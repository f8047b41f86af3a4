"""The controller's firmware: C sources, boards, and the host board as a Python object."""
