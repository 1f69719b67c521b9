"""GPU sources: what cards there are, their health and measured use, from NVML or simulated."""
