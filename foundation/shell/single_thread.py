"""Import this before anything that imports numpy: it keeps numpy's linear algebra library to one thread.

OpenBLAS starts a thread per CPU when it is loaded, each with a buffer of its own. An agent multiplies no matrices; on a
node of 384 CPUs it would have hundreds of idle threads. The library reads the variable only while it is loaded. The
variable is removed right after, since the command that ``nodectl run`` starts inherits the environment.
"""

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"

_is_set = _VARIABLE in os.environ
os.environ.setdefault(_VARIABLE, "1")

import numpy  # noqa: E402, F401  (the variable has to be there first)

if not _is_set:
    del os.environ[_VARIABLE]
