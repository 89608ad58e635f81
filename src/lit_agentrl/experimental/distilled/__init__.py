"""Context distillation: episodes are played with a text, and trained on without it."""
