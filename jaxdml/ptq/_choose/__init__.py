"""Which contractions and values of a float graph are quantized, and the rules of the caller."""
