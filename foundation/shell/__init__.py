"""What both command lines are made of: errors, settings files, tables, the log, systemd notifications.

Imports nothing else of ours. Knows nothing of power.
"""
