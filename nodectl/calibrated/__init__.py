"""What has a calibration measured of this node, and does it apply? Files are found, checked and handed to the agent.

May import nodectl.config, knobs, policies, shell and pmu. Measures nothing and moves nothing: `nodectl calibrate` does.
"""
