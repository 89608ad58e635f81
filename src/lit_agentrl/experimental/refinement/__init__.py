"""Drafts that the policy rewrites before the game plays the last one."""
