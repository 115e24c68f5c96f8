"""Example networks of jaxdml's operators."""
