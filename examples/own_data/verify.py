"""A verifier of one's own: works out which side of a question is larger, instead of comparing texts."""

import re

from lit_agentrl.envs.tasks.dataset import Verdict

SIDES = {"left": 1, ">": 1, "right": -1, "<": -1}
QUESTION = re.compile(r"(\d+) \+ (\d+) or (\d+) \?")


def verify(question: str, answer: str, cost: float = 0.1) -> Verdict:
    """1 point for the larger side, 0 for the other one, ``-cost`` for what names no side.

    Args:
        question: such as ``3 + 4 or 9 ?``.
        answer: ``Left`` or ``Right``, or the sign that belongs between the sides.
        cost: points.
    """
    asked = QUESTION.fullmatch(question)
    if asked is None:
        raise ValueError(f"{question!r} must read like '3 + 4 or 9 ?'")
    a, b, c = map(int, asked.groups())
    named = SIDES.get(answer.strip().lower())
    if named is None:
        return Verdict(-cost, False, "Left or Right")
    is_right = named * (a + b - c) > 0
    return Verdict(float(is_right), is_right, "no")
