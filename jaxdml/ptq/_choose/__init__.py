"""Chooses which contractions and values of a float graph are quantized, by default and by the caller's rules."""
