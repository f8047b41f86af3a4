"""The node agent: samples the instruments, decides by pure policies, and moves the clocks within its caps."""
