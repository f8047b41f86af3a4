"""Writes the reference pages, manual pages, dashboards and rules from the code: ``python -m docs.generator``.

It may import the whole product. Nothing of the product imports it, and it is not installed; what it writes is committed
and ``tests/test_reference.py`` fails when a file is out of date.
"""
