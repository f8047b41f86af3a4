"""How do node managers and task managers run as processes? Their links, keys, journal, and what the head learns of it.

They decide by ``cluster_agent.dispatch`` alone. Imports that room, of ``cluster_agent.fabric`` the list of keys, and
``foundation.wire``. The node's agent starts the node manager by its name.
"""
