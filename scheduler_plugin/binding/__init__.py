"""Binding: one committer assumes the cards of a pod, and writes the Binding."""
