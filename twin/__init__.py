"""The emulated node: a model of a machine, shown through the instruments and knobs that a real one has.

It is a model: every result obtained on it is to be labelled *emulated*. Nothing outside the tests, the rigs, the
benchmarks and the `demo` and `twin` commands imports it.
"""
