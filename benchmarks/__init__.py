"""Speed of jaxdml against other programs that compute the same: ``python -m benchmarks``."""
