"""A JAX function as named equations, with the bodies of its scans. Only this folder reads jaxprs."""
