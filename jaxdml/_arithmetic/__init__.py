"""Arithmetic that determines result bits: rounding and exact integer contractions, without descs or feature levels."""
