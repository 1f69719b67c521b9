"""The cluster as arrays: decoded words, pods that count, and the watches that feed them."""
