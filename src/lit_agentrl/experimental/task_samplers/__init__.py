"""Samplers that choose among training tasks by how often the policy solves them."""
