"""Rewards of sentences inside a reply."""
