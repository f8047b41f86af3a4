"""What the agent saves and costs on emulated nodes: the demonstration behind ``nodectl demo``.

It uses the twin from outside: it starts it, runs the real agent on it, and afterwards reads the truth that the agent
could not see. Every result is labelled emulated.
"""
