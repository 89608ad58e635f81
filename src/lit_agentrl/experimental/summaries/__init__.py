"""Summaries of long episodes, written by the policy, and a game that needs them."""
