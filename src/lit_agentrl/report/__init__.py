"""Statistics of a run, its summary and its closing table."""
