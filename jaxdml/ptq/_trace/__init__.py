"""A JAX function as named equations, with the bodies of its scans over layers. Only this folder reads jaxprs."""
