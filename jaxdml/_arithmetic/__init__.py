"""Decides the bits of results: rounding and exact integer contractions, without descs or feature levels."""
