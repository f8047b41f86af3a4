"""Demonstrations and emulated nodes: the only room that imports the twin and the product.

No module of the product imports it; the command lines load its commands by name. Every figure it prints is emulated.
"""
