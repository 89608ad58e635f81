"""Find optimizers that lose small steps of weights in half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WEIGHT, _RATE, _STEPS = 0.02, 1e-6, 500  # the steps sum to 4 times the spacing of bfloat16 at this weight


def check_lost_steps(optimizer: Callable[..., Any]) -> bool:
    """Return whether a bfloat16 weight stays the same after 500 steps of 1e-6 each.

    A step is lost where ``|step| < eps/2 |weight|``.  An optimizer with float32 copies of the weights, or one that
    rounds at random, loses none.  Errors of the optimizer count as a loss.
    """
    weight = torch.nn.Parameter(torch.full((2, 64), _WEIGHT, dtype=torch.bfloat16))
    before = weight.detach().clone()
    try:
        trial = optimizer([weight], lr=_RATE)
        for _ in range(_STEPS):
            weight.grad = torch.ones_like(weight)
            trial.step()
    except Exception:  # raised by torch or by a user's optimizer
        return True
    return torch.equal(weight.detach(), before)
