"""What did earlier runs of this program measure, and does it apply to this run? Files of phases: read, written, found.

May import nodectl.calibrated, decide, policies and shell, and pmu's types. Moves nothing and reads no instrument.
"""
