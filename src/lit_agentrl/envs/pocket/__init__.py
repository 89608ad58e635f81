"""PocketWorld: a small phone of apps, and tasks whose effect on it is checked."""
