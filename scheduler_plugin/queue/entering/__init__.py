"""What the queue knows of pods and gangs that come in, and since when."""
