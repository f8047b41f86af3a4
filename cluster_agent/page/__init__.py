"""What does the partition do now, and why? A page for people, made by a process of its own that only reads."""
