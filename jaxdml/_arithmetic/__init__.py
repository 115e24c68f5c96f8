"""Which bits come out: rounding and exact integer contractions; descs and feature levels are unknown here."""
