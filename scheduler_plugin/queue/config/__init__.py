"""Configuration of the queue: reading, checking, and the quotas that follow from it."""
