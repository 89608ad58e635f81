"""Networks: loading policies, log-probs, packed rows, adapters and heads."""
