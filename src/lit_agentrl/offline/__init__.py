"""Collect and label recorded episodes."""
