"""Summaries that the policy writes of long episodes, and a game that needs them."""
