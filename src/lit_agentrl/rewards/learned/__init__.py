"""Rewards from trained models, judges and the policy itself."""
