"""Comparison of finished runs on one page."""
