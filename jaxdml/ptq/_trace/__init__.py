"""A JAX function as named equations, with the bodies of its scans. In jaxdml.ptq, only this folder reads jaxprs."""
