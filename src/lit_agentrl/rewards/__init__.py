"""Reward parts: what is added to, or put in place of, the environment's reward before training sees it."""
