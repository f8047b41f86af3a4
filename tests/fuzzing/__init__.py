"""Fuzzing of meaning: inputs that are well formed, or nearly so, and lie."""
