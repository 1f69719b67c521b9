"""What the daemon writes: packed words of the Node, allocations of pods, and explanations for people."""
