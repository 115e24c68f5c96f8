"""The operator functions that users call: each converts its arguments, validates them, and computes."""
