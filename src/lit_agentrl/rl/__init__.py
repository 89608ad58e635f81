"""Pure tensor functions of reinforcement learning, one file per axis of an algorithm."""
