"""Train an agent: ``python train.py algo=grpo env=sokoban``; see ``python train.py --help``."""

from lit_agentrl.cli.train import main

if __name__ == "__main__":
    main()
