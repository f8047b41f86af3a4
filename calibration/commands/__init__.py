"""``nodectl calibrate`` and its commands, one file each, imported when the command is called."""
