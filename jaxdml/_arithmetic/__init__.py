"""All that decides the bits of a result: rounding and exact integer contractions, without descs or feature levels."""
