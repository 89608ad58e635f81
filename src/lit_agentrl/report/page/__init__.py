"""Compare finished runs on one page."""
