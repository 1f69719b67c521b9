"""Configuration of the queue: read, checked whole, and the quotas that it gives."""
