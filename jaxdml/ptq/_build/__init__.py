"""The equations of a function as a float graph of the operators that the fusing pass knows."""
