"""`gpupack demo`: the way of pods from request to card, on one machine, with every view compared."""
