"""Slow, obvious implementations that the fast ones are held against."""
