"""The episode scheduler: keeps an engine busy with many games, without a turn barrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lit_agentrl import screen, seeds
from lit_agentrl.engines.base import Engine, SamplingParams, TurnRequest, TurnResult
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.branching import Admission, Branch, Branching
from lit_agentrl.rollout.episode import EpisodeInPlay, open_episode
from lit_agentrl.rollout.hooks import NO_HOOK, PlayHook
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.branch_point import BranchPoint, list_row_tokens
from lit_agentrl.rollout.worlds.pool import GamePools


@dataclass(frozen=True)
class EpisodeSpec:
    """The address of one episode, which with the run seed keys all its random draws.

    A ``greedy`` episode takes the most likely token everywhere.  ``extra`` is the hook by which an experimental
    structure changes how the episode is played.
    """

    iteration: int
    group: int  # unique over the run
    member: int
    task: int  # index into the run's tasks
    instance_seed: int  # shared by the episodes of a group
    wave: int = 0
    greedy: bool = False
    extra: PlayHook = NO_HOOK


@dataclass(frozen=True)
class Wave:
    """Episodes that are played together: of one split, with equal sampling except greedy ones."""

    split: str  # train | val | test
    iteration: int
    params: SamplingParams
    specs: tuple[EpisodeSpec, ...]
    number: int = 0  # number of the wave within its iteration
    branching: Branching | None = None  # how sampled episodes continue from each other


class Scheduler:
    """A scheduler in which an engine writes replies while environments answer others.

    Args:
        rules: Games, wording and run seed.
        engine: Engine of the policy.
        on_reply: Called after each reply of the engine.
    """

    def __init__(self, rules: Rules, engine: Engine, on_reply: Callable[[], object] = lambda: None) -> None:
        self._rules = rules
        self._engine = engine
        self._on_reply = on_reply
        self._pools = GamePools(rules.tasks, rules.probes)
        self._unread: dict[int, list[int]] = {}  # by episode with a parent: tokens to read first
        self._due: dict[int, int] = {}  # clock time by which the game of an episode must have answered
        self._skipped = 0
        self._admission = Admission((), None, self._make_draw(Wave("train", 0, SamplingParams(), ())), 1)
        self._plays: dict[int, EpisodeInPlay] = {}  # episodes from which others may continue
        self._held: dict[int, None] = {}  # finished episodes whose state the engine still holds

    def play(self, wave: Wave) -> list[Episode]:
        """Return the episodes of a wave, in the order of its specs, including failed ones.

        Sampled episodes are played before greedy ones, because an engine's batch has one way of sampling.  Each kind is
        admitted in order.  A game or an engine that fails ends its own episode with ``EndReason.ERROR`` and the cause
        in ``Episode.error``; failed episodes are not replaced.
        """
        screen.PLAYING.begin(len(wave.specs))
        try:
            return self._play_kinds(wave)
        finally:
            screen.PLAYING.end()

    def close(self) -> None:
        """Close the environments; the next episodes make new ones."""
        self._pools.close()

    def _play_kinds(self, wave: Wave) -> list[Episode]:
        greedy = replace(wave.params, temperature=0.0, top_p=1.0, top_k=0)
        played: dict[EpisodeSpec, Episode] = {}
        for is_greedy, params in ((False, wave.params), (True, greedy)):
            specs = tuple(spec for spec in wave.specs if spec.greedy == is_greedy)
            part = replace(wave, params=params, specs=specs, branching=None if is_greedy else wave.branching)
            played |= zip(specs, self._play_part(part), strict=True)
        return [played[spec] for spec in wave.specs]

    def _play_part(self, wave: Wave) -> list[Episode]:
        addresses = [(spec.group, spec.member) for spec in wave.specs]
        vocabulary = len(self._rules.chat.tokenizer)
        self._admission = Admission(addresses, wave.branching, self._make_draw(wave), vocabulary)
        episodes: list[Episode | None] = [None] * len(addresses)
        live: dict[int, EpisodeInPlay] = {}
        self._due, self._plays, self._held = {}, {}, {}
        while self._admission.is_ready or live:
            while self._admission.is_ready and self._has_room(live):
                index, branch, parent = self._admission.take_next()
                live[index] = self._begin_episode(index, branch, parent, wave)
                episodes[index] = live[index].episode
            if answered := self._list_answered(is_writing=len(self._due) < len(live)):
                for index in answered:
                    self._continue_episode(index, live, wave)
                continue  # a finished episode makes room for another one
            steps = None  # until the engine has a reply
            if self._due:  # a game may answer before that
                steps = min(self._due.values()) - self._clock if self._rules.worlds.wait else 1
            results = self._engine.poll() if steps is None else self._engine.poll(steps=steps)
            if not results and not self._engine.num_pending:
                raise RuntimeError("the engine has nothing left to answer although replies were requested")
            for result in results:
                self._receive_reply(result, live)
        self._admission.require_all_started()
        return [episode for episode in episodes if episode is not None]

    def _make_draw(self, wave: Wave) -> Callable[..., float]:
        return partial(
            seeds.draw_uniform, self._rules.seed, f"{wave.split}/branch", wave.iteration, wave.number
        )

    def _has_room(self, live: Mapping[int, object]) -> bool:
        """Return whether one more episode can start, closing a finished one if necessary."""
        in_engine, capacity = len(live) + len(self._held), self._engine.capacity
        if len(live) >= capacity or (live and in_engine + self._admission.room > capacity):
            return False
        if in_engine >= capacity:
            # the oldest one, but the parent of the next episode only if no other is held
            candidates = sorted(self._held, key=lambda index: index == self._admission.next_parent)
            self._close_held(candidates[:1])
        return True

    def _close_held(self, held: Sequence[int]) -> None:
        for index in held:
            del self._held[index]
            self._engine.close(index)

    def _begin_episode(self, index: int, branch: Branch, parent: int | None, wave: Wave) -> EpisodeInPlay:
        spec = wave.specs[index]
        episode = Episode(
            iteration=spec.iteration,
            wave=spec.wave,
            group=spec.group,
            member=spec.member,
            task=spec.task,
            task_name=self._rules.tasks[spec.task].name,
            instance_seed=spec.instance_seed,
            tree=branch.tree if parent is None else self._plays[parent].episode.tree_member,
        )
        spec.extra.mark_episode(episode)
        noise_seed, branch_point = self._make_key(f"{wave.split}/noise", episode), None
        if parent is None:
            play = open_episode(episode, self._rules, noise_seed, spec.extra)
        else:
            play, branch_point = self._plays[parent].branch(episode, branch.turn, noise_seed)
            self._fork(parent, index, play)
        self._reset(index, episode, wave, branch_point)
        if wave.branching is not None:
            self._plays[index] = play
            self._forget_group(index)
        return play

    def _reset(
        self, index: int, episode: Episode, wave: Wave, branch_point: BranchPoint | None = None
    ) -> None:
        noise_seed = self._make_key(f"{wave.split}/noise", episode)
        self._pools.reset(
            index, episode.task, split=wave.split, seed=episode.instance_seed, noise_seed=noise_seed,
            branch_point=branch_point, saves=wave.branching is not None,
        )  # fmt: skip
        self._set_due(index)

    def _fork(self, parent: int, index: int, play: EpisodeInPlay) -> None:
        """Copy the engine's state of a parent; without it all tokens are read again."""
        row = list_row_tokens(play.episode.turns)
        is_held = parent in self._held or not self._plays[parent].is_over
        if is_held and self._engine.capabilities.fork and self._rules.context.is_append_only:
            self._engine.fork(parent, index, len(row) - 1)
            row = row[-1:]
        self._unread[index] = row

    def _forget_group(self, index: int) -> None:
        """Release the episodes of a group once no episode can continue from them."""
        if self._admission.may_branch(index):
            return
        group = self._plays[index].episode.group
        group_keys = [key for key, play in self._plays.items() if play.episode.group == group]
        self._close_held([key for key in group_keys if key in self._held])
        for key in group_keys:
            del self._plays[key]

    def _set_due(self, index: int) -> None:
        """Note by when the game of an episode, which was just asked, must have answered."""
        self._due[index] = self._clock + self._rules.worlds.delay

    @property
    def _clock(self) -> int:
        """Decode steps, including those skipped because no episode had anything to write."""
        return self._engine.num_steps + self._skipped

    def _list_answered(self, *, is_writing: bool) -> list[int]:
        """Return the episodes whose games have answered, in the order in which they continue."""
        if not self._due:
            return []
        if not self._rules.worlds.wait:
            return self._pools.poll(0.0 if is_writing else None)
        if not is_writing:
            self._skipped += max(0, min(self._due.values()) - self._clock)
        return sorted((i for i, due in self._due.items() if due <= self._clock), key=self._due.__getitem__)

    def _continue_episode(self, index: int, live: dict[int, EpisodeInPlay], wave: Wave) -> None:
        """Take a game's answer, then request the next reply or end the episode.

        Wait for the answer if necessary.
        """
        play, answer = live[index], self._pools.take(index)
        del self._due[index]
        play.take(answer)
        if play.is_over:
            self._end(index, live)
            return
        if play.tries_again:
            self._pools.release(index, is_broken=False)
            self._reset(index, play.episode, wave)
            return
        if play.asks is not None:
            self._pools.look(index, play.asks)
            self._set_due(index)
            return
        wanted, player = play.make_request(wave.params), play.episode.turns[-1].player
        if wanted.is_new:
            self._engine.close(index)  # the request holds the whole prompt
        key = self._make_key(f"{wave.split}/token", play.episode, *wanted.address)
        unread = self._unread.pop(index, None) or wanted.tokens
        request = TurnRequest(index, unread, key, wanted.params, player=player, note=play.note)
        if not self._engine.capabilities.token_ids:
            request = replace(request, messages=play.messages(), tools=play.tools())
        self._engine.submit(request)

    def _receive_reply(self, result: TurnResult, live: dict[int, EpisodeInPlay]) -> None:
        """Record a reply and send its actions to the game."""
        self._on_reply()
        screen.PLAYING.tokens += len(result.tokens)
        index, play = result.episode, live[result.episode]
        actions = play.receive_reply(result)
        if play.is_over:
            self._end(index, live)
        else:
            self._pools.step(index, actions)
            self._set_due(index)
            self._admission.after(index, play.episode, is_over=False)

    def _end(self, index: int, live: dict[int, EpisodeInPlay]) -> None:
        episode = live.pop(index).episode
        screen.PLAYING.count()
        self._unread.pop(index, None)
        self._pools.release(index, is_broken=episode.failed)
        self._admission.after(index, episode, is_over=True)
        if not episode.turns:
            return
        if self._admission.may_branch(index):
            self._held[index] = None
        else:
            self._engine.close(index)

    def _make_key(self, purpose: str, episode: Episode, *more: int) -> int:
        address = (episode.iteration, episode.wave, episode.group, episode.member, *more)
        return seeds.make_key(self._rules.seed, purpose, *address)
