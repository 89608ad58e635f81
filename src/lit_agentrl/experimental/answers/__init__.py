"""Rewards and metrics from the answer that a world knows."""
