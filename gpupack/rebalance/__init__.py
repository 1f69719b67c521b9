"""Moves of running pods that let others start or empty a card: `gpupack advise`."""
