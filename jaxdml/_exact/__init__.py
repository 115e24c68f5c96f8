"""Float functions whose every value has the same bits on every processor."""
