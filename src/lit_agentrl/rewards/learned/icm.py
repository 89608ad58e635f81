"""Intrinsic curiosity: novelty as the prediction error of a learnt forward model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl import seeds
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.learned.rnd import build_network, embed
from lit_agentrl.rewards.shaping.novelty import Novelty


@dataclass(kw_only=True)
class IntrinsicCuriosity(Novelty):
    """Intrinsic Curiosity Module on texts: Pathak et al., arXiv 1705.05363.

    ``b(s_{k+1}) = |phi_hat(s_{k+1}) - phi(s_{k+1})|^2 / 2``, where the forward model predicts ``phi_hat`` from
    ``phi(s_k)`` and the actions of turn k.  ``phi`` is trained with an inverse model that predicts the actions from
    ``phi(s_k)`` and ``phi(s_{k+1})``, so that it represents what actions change.  The loss of a transition is
    ``(1 - beta) L_inverse + beta L_forward``: ``L_forward`` is the error above, ``L_inverse`` the mean squared error
    over the hashed words of the actions, because a turn can have several; the paper uses the cross-entropy of one
    action.  Observations and actions are hashed by `embed`.  Everything runs on the CPU, over distinct transitions in
    sorted order.

    Args:
        features: size of the vector of a text.
        hidden, outputs: width of the networks, and of phi.
        beta: see above.
        lr: learning rate of Adam.
        steps: full-batch steps per iteration on its distinct transitions.
    """

    features: int = 256
    hidden: int = 64
    outputs: int = 32
    beta: float = 0.2
    lr: float = 1e-3
    steps: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("features", "hidden", "outputs", "steps"):
            require_whole(name, getattr(self, name), 1)
        require_number("beta", self.beta, "in (0, 1)", lambda value: 0 < value < 1)
        require_number("lr", self.lr, "> 0", lambda value: value > 0)

    def setup(self, context: RewardContext) -> None:
        """Create the three networks from the run's seed."""

        def make_network(purpose: str, inputs: int, outputs: int) -> nn.Module:
            return build_network(
                inputs, self.hidden, outputs, key=seeds.make_key(context.seed, f"icm-{purpose}")
            )

        self._networks = nn.ModuleDict({
            "encoder": make_network("encoder", self.features, self.outputs),
            "forecast": make_network("forecast", self.outputs + self.features, self.outputs),
            "inverse": make_network("inverse", 2 * self.outputs, self.features),
        })  # fmt: skip
        self._optimizer = torch.optim.Adam(self._networks.parameters(), lr=self.lr)

    def novelty(self, arrivals: Sequence[Turn], episodes: Sequence[Episode]) -> list[float]:
        """Return the prediction error of the observations before these turns."""
        distinct = self._list_distinct(episodes)
        if not distinct:
            return []
        with torch.no_grad():
            error = dict(zip(distinct, self._compute_errors(distinct)[0].tolist(), strict=True))
        return [error[transition] for episode in episodes for transition in list_transitions(episode)]

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> None:
        """Train all networks on the iteration's transitions."""
        super().learn(episodes, iteration=iteration)
        distinct = self._list_distinct(episodes)
        if not distinct:
            return
        with torch.enable_grad():
            for _ in range(self.steps):
                self._optimizer.zero_grad()
                forward_A, inverse_A = self._compute_errors(distinct)
                loss = (self.beta * forward_A + (1 - self.beta) * inverse_A).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
        self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Add the networks and the optimizer."""
        own = {"networks": self._networks.state_dict(), "optimizer": self._optimizer.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        super().load_state_dict(state)
        self._networks.load_state_dict(state["networks"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _list_distinct(self, episodes: Sequence[Episode]) -> list[str]:
        """List the distinct transitions of all processes, sorted."""
        return sorted(set(self.gather_texts(sorted({t for e in episodes for t in list_transitions(e)}))))

    def _compute_errors(self, transitions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Compute the errors of the forward and the inverse model for each transition."""
        before, action, after = (
            torch.stack([embed(text, self.features) for text in column])
            for column in zip(*map(json.loads, transitions), strict=True)
        )
        phi, phi_next = (self._networks["encoder"](words) for words in (before, after))
        predicted_phi = self._networks["forecast"](torch.cat([phi, action], dim=1))
        predicted_action = self._networks["inverse"](torch.cat([phi, phi_next], dim=1))
        return (predicted_phi - phi_next).square().sum(1) / 2, (predicted_action - action).square().mean(1)


def list_transitions(episode: Episode) -> list[str]:
    """List observation, actions and next observation of all turns but the last, as JSON."""
    return [
        json.dumps([turn.observation, "\n".join(turn.actions), after.observation])
        for turn, after in pairwise(episode.turns)
    ]
