"""Compose, read and check configs: the one room that composes with Hydra."""
