"""Tree search over turns: each further episode goes on from the state that UCT selects."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lit_agentrl.checks import require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.facts import BRANCHES, FORK, PLAYED, PLAYED_HERE, VALUES, WHOLE_WEIGHTS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.branching import Branch, Branching, Draw
from lit_agentrl.rollout.structures.base import SoFar, Training, Values
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(eq=False)
class Node:
    """What the policy reads before a turn.

    Attributes:
        turn: so many replies lead here.
        member: episode that wrote the last of them; of the opening the first of the group.
        is_end: the game was over there.
        visits: episodes that begin here or below, also those that are not over.
        scores: of those that are over, as `Search.evaluated` has them.
        begun: episodes that begin here and are not over.
        children: by the reply that was written here, in the order of the members that wrote them.
    """

    turn: int
    member: int
    is_end: bool = False
    visits: int = 0
    scores: list[float] = field(default_factory=list)
    begun: int = 0
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Search:
    """The rule of `Mcts`, whose options these are."""

    constant: float
    width: int
    depth: int | None
    together: int
    score: str
    critic_share: float = 0.0
    values: Values | None = None

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, members)

    def score_of(self, episode: Episode) -> float:
        return episode.total_reward if self.score == "return" else float(episode.success)

    def evaluated(self, episode: Episode, turns: int) -> list[float]:
        """What an episode says of each state of its path, from the opening to its end after so many ``turns``.

        ``(1 - w) z + w (points before the state + V(state))``, w the critic's share, z the score.  The end has z.
        """
        score = self.score_of(episode)
        if not self.critic_share:
            return [score] * (turns + 1)
        assert self.values is not None, "setup() gives them before anything is played"
        points, found = 0.0, []
        for turn, value in zip(episode.turns[:turns], self.values(episode), strict=True):
            found.append((1 - self.critic_share) * score + self.critic_share * (points + value))
            points += turn.reward
        return [*found, score]

    def expands(self, node: Node) -> bool:
        """Whether one more turn may be sampled there."""
        is_within = self.depth is None or node.turn <= self.depth
        return not node.is_end and is_within and len(node.children) + node.begun < self.width

    def is_open(self, node: Node) -> bool:
        """Whether one more turn may be sampled there or below."""
        return self.expands(node) or any(map(self.is_open, node.children))

    def selected(self, root: Node) -> list[Node]:
        """The path from the opening to where the next turn is sampled; empty where there is no such place."""
        low, high = min(root.scores, default=0.0), max(root.scores, default=0.0)
        path = [root]
        while not self.expands(path[-1]):
            found = [child for child in path[-1].children if self.is_open(child)]
            if not found:
                return []
            parent = path[-1].visits
            path.append(
                max(found, key=lambda child: self.bound(child, parent, low, high))
            )  # the first of equals
        return path

    def bound(self, node: Node, parent: int, low: float, high: float) -> float:
        """``Q + c sqrt(ln N(parent) / N)``, with Q between 0 at ``low`` and 1 at ``high``."""
        mean = sum(node.scores) / len(node.scores)
        q = (mean - low) / (high - low) if high > low else 0.0
        return q + self.constant * math.sqrt(math.log(parent) / node.visits)


class _Group:
    """A round is chosen once all episodes of the last one are over, so it does not matter which was quicker."""

    def __init__(self, rule: Search, members: Sequence[int]) -> None:
        self._rule = rule
        self._waiting = deque(members)
        self._root = Node(0, members[0])
        self._paths: dict[int, list[Node]] = {}  # to where each episode that is under way has begun
        self._over: list[Episode] = []

    def first(self) -> Sequence[Branch]:
        return self._round()

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        if not is_over:
            return ()
        self._over.append(episode)
        if len(self._over) < len(self._paths):
            return ()
        for each in sorted(self._over, key=lambda each: each.member):
            self._back_up(each)
        self._paths, self._over = {}, []
        return self._round()

    def _round(self) -> list[Branch]:
        found: list[Branch] = []
        while self._waiting and len(found) < self._rule.together:
            path = self._rule.selected(self._root)
            if not path and found:  # there may be more once this round is over
                break
            found.append(self._begun(self._waiting.popleft(), path or [self._root]))
        return found

    def _begun(self, member: int, path: list[Node]) -> Branch:
        for node in path:
            node.visits += 1
        path[-1].begun += 1
        self._paths[member] = path
        at = path[-1]
        if at.turn:
            return Branch(member, at.member, at.turn)
        return Branch(member, tree=self._root.member)

    def _back_up(self, episode: Episode) -> None:
        path = self._paths[episode.member]
        path[-1].begun -= 1
        if episode.failed:  # it tells nothing
            for node in path:
                node.visits -= 1
            return
        written = sum(len(turn.reply_tokens) > 0 for turn in episode.turns)
        path, first = list(path), path[-1].turn + 1
        said = self._rule.evaluated(episode, written)
        for turn in range(path[-1].turn + 1, written + 1):
            node = Node(turn, episode.member, is_end=turn == written, visits=1)
            path[-1].children.append(node)
            path.append(node)
        for node in path:  # those above the first new state are told its value
            node.scores.append(said[min(max(node.turn, first), written)])


class Mcts(Refill):
    """Episodes of a group grow a search tree over turns: UCT, Kocsis and Szepesvari 2006.

    An episode is a simulation.  It is selected where it begins: from the opening, as long as ``width`` replies have
    been sampled at a state, to the child with the largest ``Q + constant sqrt(ln N(parent) / N(child))``; of equal
    ones the one that was sampled first.  Q is the mean score of the episodes through a child, scaled so that the
    lowest score of the group is 0 and the highest 1; N counts these episodes.  There it writes a new reply, and it is
    played to its end; all its turns become nodes, and its score counts in all of them.  What cannot be expanded any
    more is not visited again, and a group of which nothing can goes on from the opening.  ``rollout.members`` is the
    number of simulations, which is that of leaves.  Groups are refilled as by `Refill`.
    `lit_agentrl.experimental.siblings` makes step pairs and values of what was played.

    Args:
        constant: c of UCT.
        width: replies that are sampled at a state.
        depth: turns before a reply that search samples at most; 0 plays independent episodes, None: any.
        together: episodes of a group that are under way at once.  Those that are not over count in N alone.
        score: ``return`` in points of the game, or ``success``.
        critic_share: w of ``(1 - w) z + w (points so far + V)``, the value of a state that is new to the tree: z is the
            score of the episode that was played from it, V the critic's value of it.  It counts in the states above it.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value out of range.
    """

    requires = frozenset({FORK, PLAYED})
    provides = Refill.provides | {BRANCHES}
    curves = ("first_success", "expanded_turn")

    def __init__(
        self,
        constant: float = math.sqrt(2),
        width: int = 2,
        depth: int | None = None,
        together: int = 1,
        score: str = "return",
        critic_share: float = 0.0,
        max_waves: int | None = None,
    ) -> None:
        require_number("constant", constant, "a number >= 0", lambda value: value >= 0)
        require_whole("width", width, 2, alternative="; algo/structure=independent has one")
        if depth is not None:
            require_whole("depth", depth, 0, alternative=", or null for any")
        require_whole("together", together, 1)
        require_one_of("score", score, ("return", "success"))
        require_number("critic_share", critic_share, "in [0, 1]", lambda value: 0 <= value <= 1)
        if critic_share and score != "return":
            raise ValueError(
                f"critic_share={critic_share:g} mixes points with score={score}; set score=return, or critic_share=0"
            )
        self._rule = Search(constant, width, depth, together, score, critic_share)
        self.asks_critic = critic_share > 0
        if self.asks_critic:
            alone = "algo.structure.critic_share=0"
            asked = (VALUES, PLAYED_HERE, WHOLE_WEIGHTS)
            self.requires |= {Requirement(fact, remedy=alone) for fact in asked}
        super().__init__(max_waves)

    def setup(self, training: Training) -> None:
        self._rule = replace(self._rule, values=training.values)

    def branching(self, members: int) -> Branching | None:
        # all would begin at the opening: nothing is to be waited for
        return None if self._rule.depth == 0 or self._rule.width >= members else self._rule

    def learn(self, so_far: SoFar) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in so_far.sampled if not episode.failed]
        first = {episode.group: episode for episode in reversed(played)}.values()
        turns = [episode.branch_turn for episode in played]
        return {
            "first_success": (sum(episode.success for episode in first), len(first)),
            "expanded_turn": (sum(turns), len(turns)),
        }
