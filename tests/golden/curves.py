"""Loss curves of every named algorithm over five iterations on one recorded batch.

``python -m tests.golden.curves`` writes those of the algorithms that have none and drops those of algorithms
that are gone; names behind it, or ``--all``, are written anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from hydra.utils import instantiate

from lit_agentrl.rl.binding import bind
from lit_agentrl.update.settings import OptimSettings
from tests.rl.ragged import config_of
from tests.rl.test_algo_configs import ALGORITHMS
from tests.update.bare import build, elsewhere, float64, off_policy, step

FILE = Path(__file__).parent / "loss_curves.json"
ITERATIONS = 5
SERIES = ("train/loss", "train/grad_norm", "train/ratio_max", "critic/loss", "critic/grad_norm")
ADAMW = partial(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.0)

Curve = dict[str, list[float]]


def curve(name: str) -> Curve:
    """Five iterations of three AdamW steps in float64 on the groups that the algorithm's filter keeps.

    The recorded log-probs are those of the first weights, and stay: ratios leave 1 with the second step.
    """
    found: Curve = {}
    with float64():
        config = config_of(name)
        batch = off_policy(distance=0.0)
        tensors = {field: getattr(batch, field) for field in batch.__dataclass_fields__}
        kept = bind(instantiate(config.filter), tensors).keep_groups
        optim = OptimSettings(optimizer=ADAMW, lr=0.003)
        algorithm = instantiate(config.algo)
        module = elsewhere(
            build(algorithm, optim=optim, minibatches=3, grad_clip=1.0, tokens_per_microbatch=100)
        )
        for iteration in range(ITERATIONS):
            module.row = {}
            step(module, batch.select(torch.isin(batch.group_B, kept)), iteration)
            for key in SERIES:
                if key in module.row:
                    found.setdefault(key, []).append(float(f"{module.row[key]:.10g}"))
    return found


def load() -> dict[str, Curve]:
    curves: dict[str, Curve] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return curves


def write(anew: Iterable[str]) -> None:
    old = load()
    curves = {name: old[name] if name in old and name not in anew else curve(name) for name in ALGORITHMS}
    lines = [f'"{name}": {json.dumps(found)}' for name, found in curves.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write(ALGORITHMS if "--all" in sys.argv else sys.argv[1:])
