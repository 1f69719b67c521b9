"""The interface of a vendor: cards, health, memory limits, and what a container is given."""
