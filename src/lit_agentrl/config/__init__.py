"""Compose, read and check configs; no other subpackage composes with Hydra."""
