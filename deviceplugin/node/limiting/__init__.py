"""Containers held to what they were given: which limit each gets, and what sets it."""
