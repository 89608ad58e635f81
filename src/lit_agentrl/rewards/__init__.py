"""Reward parts: they add to or replace the environment's reward before training."""
