"""Advantages and values: how returns become credit for tokens."""
