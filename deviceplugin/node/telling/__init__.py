"""What others are told: the words of the Node, the allocation of pods, and all of it for people."""
