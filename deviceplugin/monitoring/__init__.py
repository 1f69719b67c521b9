"""Measured use and health of cards and containers, compared with what was allocated."""
