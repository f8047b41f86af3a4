"""The rows behind measured tables of pages, one CSV file per measurement in ``benchmarks/published/``.

The tables are those of ``docs/benchmarks*.md``, and some of ``docs/hazard.md``. A comment before each table names its
file (``<!-- rows: benchmarks/published/NAME.csv -->``; ``...csv, KEY -->`` where the file serves several tables). The
header of a file says how its rows were made:

* ``computed``: a run of the measurement in virtual time or with seeds. ``code`` is a hash of every source that the
  measurement can reach: Python by its imports, and the C and data files of the packages that it imports. ``data`` is a
  hash of the recorded data that it read. A table is *current* while both are unchanged.
* ``transcribed``: the cells of the page itself, its heading first. Times of one machine are such, which nobody can
  compute again, and runs that took too long; the note says which. That page and file agree proves no figure.

After a change of code the rows are not wrong, only unproven: ``python -m benchmarks published`` reports them as
*code changed*, and ``--check`` computes some of them again and compares. Figures that no longer agree are an error.
"""
