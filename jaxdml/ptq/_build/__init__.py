"""Converts the equations of a function to a float graph of operators that the fusing pass knows."""
