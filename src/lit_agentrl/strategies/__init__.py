"""Strategies of Lightning that know about rollouts: where processes run, how they start, share work and fail."""
