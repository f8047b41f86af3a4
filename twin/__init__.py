"""The emulated node: a model of a machine, shown through the instruments and knobs of a real one.

Label every result obtained on it *emulated*. Only `lab/`, the rigs, the tests and the benchmarks import it.
"""
