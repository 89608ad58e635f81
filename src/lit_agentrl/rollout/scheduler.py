"""The episode scheduler: keeps an engine busy with many games at once, without a turn barrier."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace

from lit_agentrl import seeds
from lit_agentrl.engines.base import Engine, SamplingParams, TurnRequest, TurnResult
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.rollout.rules import Rules

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeSpec:
    """The address of one episode: everything random in it is keyed by these numbers and the run seed.

    A ``greedy`` episode takes the most likely token everywhere.
    """

    iteration: int
    group: int  # unique over the run
    member: int
    task: int  # index into the run's tasks
    instance_seed: int  # shared by the members of a group
    wave: int = 0
    greedy: bool = False


@dataclass(frozen=True)
class Wave:
    """Episodes that are wanted together: of one split, sampled alike but for the greedy ones."""

    split: str  # train | val | test
    iteration: int
    params: SamplingParams
    specs: tuple[EpisodeSpec, ...]
    number: int = 0  # of the iteration's waves


class Scheduler:
    """Plays episodes: an engine writes the replies, environments answer at once.

    Args:
        rules: games, wording, run seed.
        engine: holds the policy.
    """

    def __init__(self, rules: Rules, engine: Engine) -> None:
        self._rules = rules
        self._engine = engine
        self._spare: dict[tuple[str, int], list[World]] = {}  # idle environments, reused

    def play(self, wave: Wave) -> list[Episode]:
        """The episodes of a wave, in the order of its specs, failed ones included.

        Sampled episodes are played first, greedy ones after them: an engine's batch is drawn in one way.  Each
        kind is admitted in order.  A game or an engine that fails ends its own episode with
        ``EndReason.ERROR`` and the cause in ``Episode.error``; nothing is replaced.
        """
        greedy = replace(wave.params, temperature=0.0, top_p=1.0, top_k=0)
        played: dict[EpisodeSpec, Episode] = {}
        for is_greedy, params in ((False, wave.params), (True, greedy)):
            specs = tuple(spec for spec in wave.specs if spec.greedy == is_greedy)
            played |= zip(specs, self._play(replace(wave, params=params, specs=specs)), strict=True)
        return [played[spec] for spec in wave.specs]

    def _play(self, wave: Wave) -> list[Episode]:
        waiting = deque(enumerate(wave.specs))
        episodes: list[Episode | None] = [None] * len(waiting)
        live: dict[int, EpisodeInPlay] = {}
        while waiting or live:
            while waiting and len(live) < self._engine.capacity:
                index, spec = waiting.popleft()
                play = self._begin(spec, wave.split)
                episodes[index] = play.episode
                if play.is_over:
                    self._retire(play, wave.split)
                else:
                    live[index] = play
                    self._submit(index, play, wave)
            if not live:
                continue
            results = self._engine.poll()
            if not results:
                raise RuntimeError("the engine returned nothing although replies were requested")
            for result in results:
                self._answer(result, live, wave)
        return [episode for episode in episodes if episode is not None]

    def _begin(self, spec: EpisodeSpec, split: str) -> EpisodeInPlay:
        rules = self._rules
        task = rules.tasks[spec.task]
        spare = self._spare.setdefault((split, spec.task), [])
        env = spare.pop() if spare else task.make(split)
        episode = Episode(
            iteration=spec.iteration,
            wave=spec.wave,
            group=spec.group,
            member=spec.member,
            task=spec.task,
            task_name=task.name,
            instance_seed=spec.instance_seed,
        )
        play = EpisodeInPlay(episode, env, rules, probes=rules.probes if split == "train" else {})
        play.begin(noise_seed=self._key(f"{split}/noise", episode))
        return play

    def _submit(self, index: int, play: EpisodeInPlay, wave: Wave) -> None:
        episode, turn = play.episode, play.episode.turns[-1]
        if turn.starts_row and len(episode.turns) > 1:
            self._engine.close(index)  # what it holds of the episode is not to be read again
        key = self._key(f"{wave.split}/token", episode, len(episode.turns) - 1)
        self._engine.submit(TurnRequest(index, turn.prefix_tokens.tolist(), key, wave.params))

    def _answer(self, result: TurnResult, live: dict[int, EpisodeInPlay], wave: Wave) -> None:
        play = live[result.episode]
        play.answer(result)
        if play.is_over:
            del live[result.episode]
            self._engine.close(result.episode)
            self._retire(play, wave.split)
        else:
            self._submit(result.episode, play, wave)

    def _retire(self, play: EpisodeInPlay, split: str) -> None:
        if play.episode.error:  # an environment that failed is not used again
            _close(play.env)
        else:
            self._spare[split, play.episode.task].append(play.env)

    def close(self) -> None:
        """Close the idle environments; the next episodes make new ones."""
        for spare in self._spare.values():
            for env in spare:
                _close(env)
        self._spare.clear()

    def _key(self, purpose: str, episode: Episode, *more: int) -> int:
        address = (episode.iteration, episode.wave, episode.group, episode.member, *more)
        return seeds.key(self._rules.seed, purpose, *address)


def _close(env: World) -> None:
    try:
        env.close()
    except Exception as error:  # a game's own code; its episode is over, so the run need not be
        _log.warning("a game of class %s could not be closed: %s", type(env).__name__, error)
