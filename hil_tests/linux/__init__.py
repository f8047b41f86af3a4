"""The linux rig: a real kernel as client, through the virtio device of ``firmware_bridge``."""
