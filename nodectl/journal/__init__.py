"""Records of what a run read, decided and wrote, kept so that it can be replayed."""
