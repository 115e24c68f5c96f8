"""Example networks of jaxdml's operators."""

from jaxdml.examples import digits as digits
