"""Float functions whose results have the same bits on every processor."""
