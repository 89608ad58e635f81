"""lit_agentrl: reinforcement learning for multi-turn language-model agents on PyTorch Lightning."""

__version__ = "0.3.0"
