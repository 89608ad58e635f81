"""Prompts of each iteration, and data sets of recorded episodes and of rows."""
