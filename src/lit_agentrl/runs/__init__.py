"""Start, continue and record training runs."""
