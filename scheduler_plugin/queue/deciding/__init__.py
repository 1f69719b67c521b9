"""Who is released, who waits on, and who must go; gangs whole or not at all."""
