"""Machines fitted to measurements: what volts, shares and watts make the model's power law follow a measured sweep?

Imports ``twin.machine_tables``, ``twin.errors`` and ``twin.toml_table``; knows neither the model nor its workloads.
"""
