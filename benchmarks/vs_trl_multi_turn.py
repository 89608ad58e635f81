"""Multi-turn iterations beside TRL's GRPOTrainer with ``environment_factory``, one process, taking turns."""

from __future__ import annotations

import trl_sides


def main() -> None:
    trl_sides.compare(__file__, __doc__, turns=5, reply_tokens=16)


if __name__ == "__main__":
    main()
