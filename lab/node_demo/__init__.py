"""What the agent saves and costs on emulated nodes: the demonstration behind ``nodectl demo``.

This is the one place of the product that knows the twin, and it knows it from outside: it starts it, runs the real
agent on it, and afterwards reads the truth that the agent could not see. Every result is labelled emulated.
"""
