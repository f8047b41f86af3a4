"""Policies of a site: one file each, announced in pyproject.toml."""
