"""Rigs (how each kind of controller target is started and stopped) and the scenarios that run on every rig."""
