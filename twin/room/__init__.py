"""The emulated machine room: racks, the air between them, the units that cool it, and what goes wrong with these.
Imports ``twin.toml_table`` and ``twin.errors``; all that comes of it is EMULATED."""
