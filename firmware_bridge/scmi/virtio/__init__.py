"""SCMI for virtual machines: a vhost-user back end of the virtio-scmi device."""
