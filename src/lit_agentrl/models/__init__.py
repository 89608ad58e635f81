"""Networks: loading policies, and the one place that shifts logits onto their tokens."""
