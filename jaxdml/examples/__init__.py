"""Networks made of jaxdml's operators."""
