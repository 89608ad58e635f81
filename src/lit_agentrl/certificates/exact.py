"""The exact numbers of a game: probabilities, values, and gradients of objectives.

Shapes: ``M`` episodes of the game, ``T`` tokens of the longest, ``L`` logits.  All numbers are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_agentrl.certificates.games import Logits, Path, TableGame, list_paths

_STEP = 0.5  # step size of the gradient ascent from the policy that played to the trained policy


@dataclass(frozen=True)
class Table:
    """A game with its episodes listed, and the logits of its policies as vectors.

    Attributes:
        game: the game.
        paths: the M episodes.
        slot_MT: index of the token's logit among the L; -1 where there is no token.
        state_MT: index of the token's state; -1 where there is no token.
        ranges: start and end (exclusive) of each state's logits among the L.
        prompt_M, return_M, length_M: prompt, return and number of tokens of each episode.
        theta: logits of the trained policy.
        old: logits of the policy that played.
        reference: logits of the reference policy.
    """

    game: TableGame
    paths: list[Path]
    slot_MT: Tensor
    state_MT: Tensor
    ranges: list[tuple[int, int]]
    prompt_M: Tensor
    return_M: Tensor
    length_M: Tensor
    theta: Tensor
    old: Tensor
    reference: Tensor

    @property
    def num_prompts(self) -> int:
        return len(self.game.starts)


def make_table(game: TableGame) -> Table:
    """List the episodes of a game and lay out its logits."""
    paths = list_paths(game)
    states = list(dict.fromkeys(token.state for path in paths for token in path.tokens))
    ranges, start = [], 0
    for name in states:
        ranges.append((start, start + len(game.moves[name])))
        start = ranges[-1][1]
    longest = max(len(path.tokens) for path in paths)
    slot_MT = torch.full((len(paths), longest), -1)
    state_MT = torch.full((len(paths), longest), -1)
    for m, path in enumerate(paths):
        for t, token in enumerate(path.tokens):
            state_MT[m, t] = states.index(token.state)
            slot_MT[m, t] = ranges[states.index(token.state)][0] + token.choice
    numbers = torch.tensor([[path.prompt, len(path.tokens)] for path in paths])
    old = _arrange_logits(game, game.logits, states)
    old_table = Table(
        game, paths, slot_MT, state_MT, ranges,
        prompt_M=numbers[:, 0], length_M=numbers[:, 1],
        return_M=torch.tensor([path.total for path in paths], dtype=torch.float64),
        theta=old, old=old, reference=old,
    )  # fmt: skip
    theta = old
    for _ in range(game.lag):
        theta = theta + _STEP * compute_gradient(lambda x: compute_mean_return(old_table, x), theta)
    reference = _arrange_logits(game, game.reference, states) if game.reference else theta
    return replace(old_table, theta=theta, reference=reference)


def _arrange_logits(game: TableGame, logits: Logits, states: list[str]) -> Tensor:
    rows = [logits.get(name, (0.0,) * len(game.moves[name])) for name in states]
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def compute_log_probs(table: Table, theta: Tensor) -> Tensor:
    """Return the log-prob of each token, (M, T); 0 where there is no token."""
    log_prob = torch.cat([theta[low:high].log_softmax(0) for low, high in table.ranges])
    return torch.where(table.slot_MT >= 0, log_prob[table.slot_MT], torch.zeros((), dtype=theta.dtype))


def compute_entropies(table: Table, theta: Tensor) -> Tensor:
    """Return the entropy of each token's state, (M, T); 0 where there is no token."""
    log_probs = [theta[low:high].log_softmax(0) for low, high in table.ranges]
    entropy = torch.stack([-(log_prob.exp() * log_prob).sum() for log_prob in log_probs])
    return torch.where(table.state_MT >= 0, entropy[table.state_MT], torch.zeros((), dtype=theta.dtype))


def compute_reference_kls(table: Table, theta: Tensor) -> Tensor:
    """Return KL(reference || policy) of each token's state, (M, T); 0 where no token is."""
    pairs = [(table.reference[a:b].log_softmax(0), theta[a:b].log_softmax(0)) for a, b in table.ranges]
    kl = torch.stack([(q.exp() * (q - p)).sum() for q, p in pairs])
    return torch.where(table.state_MT >= 0, kl[table.state_MT], torch.zeros((), dtype=theta.dtype))


def compute_path_log_probs(table: Table, theta: Tensor) -> Tensor:
    """Return the log-prob of each episode given its prompt, (M,)."""
    return compute_log_probs(table, theta).sum(1)


def compute_mean_return(table: Table, theta: Tensor) -> Tensor:
    """Return the expected return, averaged over prompts."""
    return (compute_path_log_probs(table, theta).exp() * table.return_M).sum() / table.num_prompts


def compute_prompt_means(table: Table, theta: Tensor, value_M: Tensor) -> Tensor:
    """Return, for each episode, the mean of a value over its prompt's episodes, (M,)."""
    prob_M = compute_path_log_probs(table, theta).exp()
    means = torch.zeros(table.num_prompts, dtype=theta.dtype).index_add(0, table.prompt_M, prob_M * value_M)
    return means[table.prompt_M]


def compute_values(table: Table, theta: Tensor) -> Tensor:
    """Return the expected sum of rewards from each token on, given its state, (M, T)."""
    prob_M = compute_path_log_probs(table, theta).exp()
    reward_MT = torch.zeros(table.slot_MT.shape, dtype=torch.float64)
    for m, path in enumerate(table.paths):
        for t, token in enumerate(path.tokens):
            reward_MT[m, t] = token.move.reward
    to_go_MT = reward_MT.flip(1).cumsum(1).flip(1)
    value_MT = torch.zeros_like(reward_MT)
    for state in range(len(table.ranges)):
        is_here_MT = table.state_MT == state  # an episode visits a state once, since it has no loops
        weight_MT = prob_M[:, None] * is_here_MT
        value_MT = torch.where(is_here_MT, (weight_MT * to_go_MT).sum() / weight_MT.sum(), value_MT)
    return value_MT


def compute_gradient(objective: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """Return the gradient of a function of the logits, (L,)."""
    leaf = theta.detach().clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(objective(leaf), leaf)
    return gradient


def compute_jacobian(function: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """Return the derivatives of a tensor by the logits; the last dimension is L."""
    with torch.enable_grad():
        jacobian: Tensor = torch.func.jacrev(function)(theta.detach())
    return jacobian
