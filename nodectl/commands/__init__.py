"""One file per ``nodectl`` command, imported when the command is called."""
