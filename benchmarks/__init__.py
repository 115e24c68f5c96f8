"""Speed of jaxdml and of other programs that compute the same results: ``python -m benchmarks``."""
