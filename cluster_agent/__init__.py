"""Shares a power budget among nodes and runs the job scheduler, live and in replay."""
