"""Speed of jaxdml against what else computes the same: ``python -m benchmarks``."""
