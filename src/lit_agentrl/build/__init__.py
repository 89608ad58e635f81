"""Build the objects of a run from its config."""
