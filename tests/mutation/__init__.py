"""Mutation tests: are the tests of the safety parts a net? ``make mutate`` changes the code in one place and runs them.

A change that no test notices is a *survivor*. Each is named in ``tests/mutants.toml`` with its reason; one that is not
fails the run. ``results`` has the rows that every language's half yields, ``python`` makes and tries the mutants of
Python modules, ``__main__`` is the command. Not a part of the product: nothing outside this folder imports it.
"""
