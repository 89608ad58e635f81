"""Samplers that choose training tasks by their success rates."""
