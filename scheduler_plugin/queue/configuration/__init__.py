"""The configuration: read, checked whole, and the quotas that it gives."""
