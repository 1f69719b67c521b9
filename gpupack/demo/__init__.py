"""`gpupack demo`: the main job from a pod's request to its card, on one machine, with every view compared."""
