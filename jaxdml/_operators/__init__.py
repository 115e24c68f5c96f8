"""The functions that a caller writes: arguments become typed arrays and a desc, which is checked, then computed."""
