"""The engine that plays with the trainer's own network."""
