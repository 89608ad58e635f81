"""Train an agent: ``python train.py algo=grpo env=sokoban``; see ``python train.py --help``."""

from lit_agentrl.entry.cli import main_train

if __name__ == "__main__":
    main_train()
