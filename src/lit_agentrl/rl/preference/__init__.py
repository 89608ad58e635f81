"""Losses of comparisons, rankings and labels."""
