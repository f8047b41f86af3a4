"""Import this before anything that imports numpy: it keeps numpy's linear algebra library to one thread.

OpenBLAS starts a thread per CPU when it is loaded, each with a buffer of its own. An agent multiplies no matrices; on a
node of 384 CPUs it would carry hundreds of idle threads. The variable is only read while the library is loaded and is
taken away again at once, since the command that the agent runs around inherits the environment.
"""

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"

_is_set = _VARIABLE in os.environ
os.environ.setdefault(_VARIABLE, "1")

import numpy  # noqa: E402, F401  (the variable has to be there first)

if not _is_set:
    del os.environ[_VARIABLE]
