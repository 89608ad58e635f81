"""Settings of training episodes: their number, sampling and overlap with training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lit_agentrl.checks import MOST_EPISODES, name_errors, require, require_number, require_whole
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.facts import GROUP_SIZE, IN_ORDER, REPEATED
from lit_agentrl.requirements import Fact, Offer


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """Settings for playing the episodes of an iteration.

    Args:
        prompts: Groups per iteration (P).
        members: Episodes per group, the group size (N).
        temperature, top_p, top_k, max_reply_tokens, max_context_tokens: See ``SamplingParams``.
        allow_truncated_sampling: Whether to allow ``top_p < 1`` or ``top_k > 0`` in training; the recorded log-probs
            then differ from those of the truncated distribution.
        max_failed_share: Share of an iteration's episodes whose game may fail before the run stops.
        instances: Number of game instances in training, which are played repeatedly; None always plays new instances.
        overlap: Whether the worker plays the next iteration while this one trains; see `PlayAhead`.

    Raises:
        ValueError: A value is out of range, or has no effect; the message names the option.
    """

    prompts: int
    members: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_reply_tokens: int = 64
    max_context_tokens: int = 1024
    allow_truncated_sampling: bool = False
    max_failed_share: float = 0.1
    instances: int | None = None
    overlap: bool = False

    def __post_init__(self) -> None:
        require_whole("prompts", self.prompts, 1, MOST_EPISODES)
        require_whole("members", self.members, 1, MOST_EPISODES)
        if self.prompts * self.members > MOST_EPISODES:
            raise ValueError(
                f"prompts={self.prompts}: with members={self.members} an iteration has more than {MOST_EPISODES} "
                "episodes, which are held in memory; lower one of them"
            )
        require_number(
            "temperature",
            self.temperature,
            "finite and > 0: greedy rollouts cannot explore",
            lambda value: value > 0,
        )
        _ = self.params  # raises an error at once if sampling parameters are invalid
        if (self.top_p < 1 or self.top_k > 0) and not self.allow_truncated_sampling:
            raise ValueError(
                f"top_p={self.top_p} and top_k={self.top_k}: truncated sampling makes training off-policy; set "
                "rollout.allow_truncated_sampling=true to accept that"
            )
        require_number("max_failed_share", self.max_failed_share, "in [0, 1]", lambda share: 0 <= share <= 1)
        if self.instances is not None:
            require_whole("instances", self.instances, 1, MOST_EPISODES)
        require(isinstance(self.overlap, bool), "overlap", self.overlap, "true or false")

    @property
    def provides(self) -> list[Fact | Offer]:
        """The group size, and whether updates are waited for and tasks are repeated."""
        size = Offer(GROUP_SIZE, self.members, f"rollout.members={self.members}")
        instances = "null" if self.instances is None else self.instances
        repeated = Offer(REPEATED, float(self.instances is not None), f"rollout.instances={instances}")
        in_order = Offer(IN_ORDER, float(not self.overlap), f"rollout.overlap={self.overlap}".lower())
        return [size, in_order, repeated]

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_reply_tokens=self.max_reply_tokens,
            max_context_tokens=self.max_context_tokens,
        )


def make_eval_params(settings: RolloutSettings, temperature: float, split: str) -> SamplingParams:
    """Return the sampling of evaluations: without truncation, under the limits of training.

    Raises:
        ValueError: the temperature is negative or missing.
    """
    with name_errors(split):
        return replace(settings.params, temperature=temperature, top_p=1.0, top_k=0)
