"""The scheduler's cache: nodes as arrays, pods and what they are charged, kept by watches."""
