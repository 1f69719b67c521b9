"""Memory limits of containers: which limit each one gets, and what sets it."""
