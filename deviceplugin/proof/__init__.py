"""What a card and its driver really do, tried out: `gpupack node --check --prove`."""
