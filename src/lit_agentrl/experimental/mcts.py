"""Tree search over turns: each new episode continues from the state that UCT selects."""

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
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook, Training, Values
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(eq=False)
class Node:
    """A state of the tree, in which the policy writes a reply.

    Attributes:
        turn: number of replies before the state.
        member: episode that wrote the last of these replies; for the opening, the first of the group.
        is_end: True if the game is over in this state.
        visits: number of episodes that pass through the state, including unfinished ones.
        scores: values of the finished ones of these episodes, as returned by `Search.evaluate_path`.
        num_running: number of unfinished episodes that start in the state.
        children: one node for each reply to the state, in the order of the episodes that wrote them.
    """

    turn: int
    member: int
    is_end: bool = False
    visits: int = 0
    scores: list[float] = field(default_factory=list)
    num_running: int = 0
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Search:
    """The search rule of `Mcts`, with its options."""

    constant: float
    width: int
    depth: int | None
    together: int
    score: str
    critic_share: float = 0.0
    values: Values | None = None

    def group(self, members: Sequence[int], draw: Draw, vocabulary: int) -> _Group:
        return _Group(self, members)

    def get_score(self, episode: Episode) -> float:
        return episode.total_reward if self.score == "return" else float(episode.success)

    def evaluate_path(self, episode: Episode, turns: int) -> list[float]:
        """Estimate the value of each state on an episode's path, in units of the score.

        The path leads from the opening to the end after ``turns`` turns.  With the critic's share w and the score z,
        the value is ``(1 - w) z + w (reward before the state + V(state))``; at the end it is z.
        """
        score = self.get_score(episode)
        if not self.critic_share:
            return [score] * (turns + 1)
        assert self.values is not None, "setup() sets the values before anything is played"
        reward, values = 0.0, []
        for turn, value in zip(episode.turns[:turns], self.values(episode), strict=True):
            values.append((1 - self.critic_share) * score + self.critic_share * (reward + value))
            reward += turn.reward
        return [*values, score]

    def can_expand(self, node: Node) -> bool:
        """Return whether one more turn may be sampled at a node."""
        is_within = self.depth is None or node.turn <= self.depth
        return not node.is_end and is_within and len(node.children) + node.num_running < self.width

    def is_open(self, node: Node) -> bool:
        """Return whether one more turn may be sampled at a node or below it."""
        return self.can_expand(node) or any(map(self.is_open, node.children))

    def select_path(self, root: Node) -> list[Node]:
        """Return the path from the root to the node to expand; empty without one."""
        low, high = min(root.scores, default=0.0), max(root.scores, default=0.0)
        path = [root]
        while not self.can_expand(path[-1]):
            open_children = [child for child in path[-1].children if self.is_open(child)]
            if not open_children:
                return []
            parent = path[-1].visits
            # max returns the first of equal children
            path.append(max(open_children, key=lambda child: self.compute_bound(child, parent, low, high)))
        return path

    def compute_bound(self, node: Node, parent: int, low: float, high: float) -> float:
        """Compute the UCT bound of a node.

        ``Q + c sqrt(ln N(parent) / N)``, with Q scaled to 0 at ``low`` and 1 at ``high``.
        """
        mean = sum(node.scores) / len(node.scores)
        q = (mean - low) / (high - low) if high > low else 0.0
        return q + self.constant * math.sqrt(math.log(parent) / node.visits)


class _Group:
    """The search tree of one group.

    A round is selected once all episodes of the previous round have ended, so it does not depend on which was faster.
    """

    def __init__(self, rule: Search, members: Sequence[int]) -> None:
        self._rule = rule
        self._waiting = deque(members)
        self._root = Node(0, members[0])
        self._paths: dict[int, list[Node]] = {}  # path to the start of each episode of the round
        self._ended: list[Episode] = []

    def first(self) -> Sequence[Branch]:
        return self._start_round()

    def after(self, episode: Episode, *, is_over: bool) -> Sequence[Branch]:
        if not is_over:
            return ()
        self._ended.append(episode)
        if len(self._ended) < len(self._paths):
            return ()
        for ended in sorted(self._ended, key=lambda ended: ended.member):
            self._propagate_score(ended)
        self._paths, self._ended = {}, []
        return self._start_round()

    def _start_round(self) -> list[Branch]:
        branches: list[Branch] = []
        while self._waiting and len(branches) < self._rule.together:
            path = self._rule.select_path(self._root)
            if not path and branches:  # more nodes may open once this round has ended
                break
            branches.append(self._start(self._waiting.popleft(), path or [self._root]))
        return branches

    def _start(self, member: int, path: list[Node]) -> Branch:
        for node in path:
            node.visits += 1
        path[-1].num_running += 1
        self._paths[member] = path
        start = path[-1]
        if start.turn:
            return Branch(member, start.member, start.turn)
        return Branch(member, tree=self._root.member)

    def _propagate_score(self, episode: Episode) -> None:
        path = self._paths[episode.member]
        path[-1].num_running -= 1
        if episode.failed:  # a failed episode has no score
            for node in path:
                node.visits -= 1
            return
        written = sum(len(turn.reply_tokens) > 0 for turn in episode.turns)
        path, first = list(path), path[-1].turn + 1
        values = self._rule.evaluate_path(episode, written)
        for turn in range(path[-1].turn + 1, written + 1):
            node = Node(turn, episode.member, is_end=turn == written, visits=1)
            path[-1].children.append(node)
            path.append(node)
        for node in path:  # nodes above the first new state receive that state's value
            node.scores.append(values[min(max(node.turn, first), written)])


class Mcts(StructureHook, Refill):
    """A structure that grows a search tree over turns in each group: UCT.

    Kocsis and Szepesvari 2006.  Each episode is a simulation.  Selection starts at the opening; while a state already
    has ``width`` sampled replies, it moves on to the child with the largest
    ``Q + constant sqrt(ln N(parent) / N(child))``; ties go to the child that was sampled first.  Q is the mean score of
    the episodes through a child, scaled so that the lowest score of the group is 0 and the highest 1; N counts these
    episodes.  At the selected state the episode writes a new reply and is played to its end; all its turns become
    nodes, and its score counts in all nodes of its path.  Selection skips states where neither they nor states below
    them can be expanded; if no state of a group can be expanded, further episodes start from the opening.
    ``rollout.members`` is the number of simulations, which equals the number of leaves.  Groups are refilled as by
    `Refill`.

    Args:
        constant: c of UCT.
        width: number of replies sampled at a state.
        depth: maximum number of turns before a reply that the search samples; 0 plays independent episodes, None sets
            no maximum.
        together: number of episodes of a group that run at once.  Unfinished episodes count only in N.
        score: ``return``, the total reward of the game, or ``success``.
        critic_share: w of ``(1 - w) z + w (reward so far + V)``, the value of a state that is new to the tree: z is the
            score of the episode played from it, V the critic's value of it.  The states above it use the same value.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    requires = frozenset({FORK, PLAYED})
    provides = Refill.provides | {BRANCHES}
    curves: Sequence[str] = ("first_success", "expanded_turn")

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
                f"critic_share={critic_share:g} mixes rewards with score={score}; set score=return, or critic_share=0"
            )
        self._rule = Search(constant, width, depth, together, score, critic_share)
        self._asks_critic = critic_share > 0
        if self._asks_critic:
            remedy = "algo.structure.critic_share=0"
            facts = (VALUES, PLAYED_HERE, WHOLE_WEIGHTS)
            self.requires |= {Requirement(fact, remedy=remedy) for fact in facts}
        super().__init__(max_waves)

    def setup(self, training: Training) -> None:
        if self._asks_critic:  # otherwise the rule stays plain data, which can be sent to another process
            self._rule = replace(self._rule, values=training.values)

    def branching(self, members: int) -> Branching | None:
        # all episodes would start at the opening, so none has to wait for another
        return None if self._rule.depth == 0 or self._rule.width >= members else self._rule

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in progress.sampled if not episode.failed]
        first = {episode.group: episode for episode in reversed(played)}.values()
        turns = [episode.branch_turn for episode in played]
        return {
            "first_success": (sum(episode.success for episode in first), len(first)),
            "expanded_turn": (sum(turns), len(turns)),
        }
