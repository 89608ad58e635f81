"""Training against earlier policies, which a rule chooses by their results so far."""
