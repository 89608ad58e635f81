"""lit_agentrl: reinforcement learning for multi-turn language-model agents on PyTorch Lightning."""

__version__ = "0.2.0"
