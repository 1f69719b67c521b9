"""What containers and cards really use: measured, compared with what was given, and their health."""
