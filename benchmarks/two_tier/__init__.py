"""Parallel first tiers in processes of their own, as the method has them; measured by `benchmarks.burst`."""
