"""A structure that plays with a text, and trains without it: context distillation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lit_agentrl import facts
from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require
from lit_agentrl.episode import Message
from lit_agentrl.experimental.experience import add_text
from lit_agentrl.rollout.hooks import NO_HOOK, Moment, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(frozen=True)
class DistilledHook(PlayHook):
    """A hook that adds a text to the opening for play, but not for training."""

    text: str

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        return written if moment.turns else add_text(written, moment, self.text)

    def get_trained(self) -> PlayHook:
        return NO_HOOK


class Distilled(StructureHook, Refill):
    """A structure whose episodes are played with a text, and trained on without it.

    Context distillation (Askell et al., arXiv 2112.00861; Snell et al., 2209.15189) by reinforcement learning: the
    text (an instruction, lessons, reflections) helps to find good replies, and the policy learns to write them without
    it.  With c the text, x the opening and y the tokens of an episode, play samples ``y ~ p_old(y | c, x)``, and the
    loss has ``log p(y | x)``.  Ratios are ``p(y_t | x, y_<t) / p_old(y_t | x, y_<t)``: old log-probs are those of the
    weights before the update, recomputed without the text, so that every ratio begins at 1.  No importance weight
    corrects for ``p_old(y | c, x) / p_old(y | x)``, so the gradient is that of weighted imitation of the policy with
    the text.

    Validation and test are played without the text.  Groups are refilled as by `Refill`.

    Args:
        text: the text; None: that of ``path``.
        path: a file of text, such as ``experience/iteration_20.txt`` of ``algo=training_free_grpo``.
        max_waves: see `Refill`.

    Raises:
        ValueError: both or neither of ``text`` and ``path`` are given, the text is blank, or the file cannot be read.
    """

    requires = frozenset({facts.WHOLE_CONTEXT, facts.PLAYED})

    def __init__(
        self, *, text: str | None = None, path: str | None = None, max_waves: int | None = None
    ) -> None:
        if (text is None) == (path is None):
            raise ValueError(f"text={text} and path={path}: give exactly one of them")
        if path is not None:
            try:
                text = Path(path).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"path={path} cannot be read; name a file of UTF-8 text") from error
        is_text = isinstance(text, str) and bool(text.strip())
        require(is_text, "text" if path is None else "path", text, "a text that is not blank")
        self._hook = DistilledHook(str(text).strip())
        super().__init__(max_waves)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return [replace(spec, extra=self._hook) for spec in super().plan(prompts, members)]
