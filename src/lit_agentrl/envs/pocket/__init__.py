"""PocketWorld: a small phone of apps, and tasks whose effects are checked."""
