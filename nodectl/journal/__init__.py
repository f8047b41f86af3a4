"""Records of what a run read, decided and wrote, kept so that it can be replayed.

append a tick   writing.JournalWriter   ->  directory of segments (format)  ->  reading.open_journal   read ticks
"""

from nodectl.journal.format import JournalError, Keyframe
from nodectl.journal.reading import Journal, Loss, Record, open_journal
from nodectl.journal.writing import DEFAULT_MAX_BYTES, JournalWriter

__all__ = [
    "DEFAULT_MAX_BYTES",
    "Journal",
    "JournalError",
    "JournalWriter",
    "Keyframe",
    "Loss",
    "Record",
    "open_journal",
]
