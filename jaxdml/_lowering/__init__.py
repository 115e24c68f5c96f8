"""Ways to compute the exact int32 contractions. Nothing here knows descs, scales or feature levels."""
