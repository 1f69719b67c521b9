"""Sources of GPUs, by vendor: what a card is to the daemon (`api`), NVIDIA's, and simulated ones."""
