"""The operator functions that users call: each converts its arguments, validates their desc, and computes."""
