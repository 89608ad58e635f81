"""Rollouts: the episode scheduler and the packing of episodes into tensors."""
