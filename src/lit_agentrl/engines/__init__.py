"""Engines: whatever turns token prefixes into sampled replies."""
