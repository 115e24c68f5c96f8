"""A JAX function as named equations, with the bodies of its scans over layers; the only folder that reads jaxprs."""
