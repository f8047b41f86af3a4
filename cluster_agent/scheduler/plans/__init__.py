"""The phase *plan*: a full plan of starts and places, made again at every event, and the record that repeats it.

It may import job columns, unlike nodes and the native scheduler. It starts no job: the engine's admission does.
"""
