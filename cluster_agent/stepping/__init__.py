"""Replays that someone else decides, step by step: an agent that learns, a search, a planner of one's own.

``steps`` has the world that stops at each decision and can be forked, ``environment`` one for gymnasium on it,
``searched`` and ``learned`` one baseline each. ``batsim`` has schedulers in other processes that speak Batsim's
protocol, ``batsim_messages`` what is said, ``batsim_link`` the connection. All of it may
import ``scheduler``, ``library`` for its ``World`` and its ``Result``, and ``replay`` for its measures.
"""
