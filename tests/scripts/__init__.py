"""Scripts of calls that run against the real component and its stand-in alike."""
