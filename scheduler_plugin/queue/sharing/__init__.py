"""Tenants: their waiting tasks and slots, what they have, and what they lend each other."""
