"""Drafts that the policy rewrites before the game plays a reply."""
