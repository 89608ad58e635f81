"""lit_agentrl: reinforcement learning for multi-turn language-model agents on PyTorch Lightning."""

__version__ = "0.1.0"
