"""Watch a run for signs of collapse and act on them."""
