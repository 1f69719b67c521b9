"""Simulated cards from a profile, for laptops, clusters without GPUs and tests."""
