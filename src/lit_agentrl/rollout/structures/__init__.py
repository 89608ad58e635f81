"""Structures of a prompt's group of episodes, one per file."""
