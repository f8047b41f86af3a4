"""Writes the reference pages and manual pages from the code: ``python -m docs.generator``.

It may import the whole product. Nothing of the product imports it, and it is not installed; its pages are committed and
``tests/test_reference.py`` fails when one is out of date.
"""
