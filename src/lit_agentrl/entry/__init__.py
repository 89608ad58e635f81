"""Entry points: everything that knows Hydra."""
