"""Play against earlier policies, which a rule chooses by the results so far."""
