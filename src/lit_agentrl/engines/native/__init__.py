"""The engine that generates with the trainer's own network."""
