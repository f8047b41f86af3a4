"""The policies: one file each, named in ``registry``. How to add one: docs/extending.md."""
