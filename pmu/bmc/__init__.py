"""What the baseboard management controller measures, from its last answer. Imports ``pmu``."""
