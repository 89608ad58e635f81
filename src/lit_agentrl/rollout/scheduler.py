"""The episode scheduler: keeps an engine busy with many games at once, without a turn barrier."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lit_agentrl import seeds
from lit_agentrl.engines.base import Engine, SamplingParams, TurnRequest, TurnResult
from lit_agentrl.envs.base import Task, TextEnv
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Probe
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL, Context
from lit_agentrl.text.prompts import Prompt

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeSpec:
    """The address of one episode: everything random in it is keyed by these numbers and the run seed."""

    iteration: int
    group: int  # unique over the run
    member: int
    task: int  # index into the sampler's tasks
    instance_seed: int  # shared by the members of a group
    wave: int = 0


class Sampler:
    """Plays episodes: an engine writes the replies, environments answer them at once.

    Args:
        engine: holds the policy.
        tasks: the games; ``EpisodeSpec.task`` indexes them.
        split: ``train`` | ``val`` | ``test``.
        prompt, chat: wording and template.
        params: sampling parameters.
        context: what of an episode the policy reads before a reply.
        seed: run seed.
        probes: measured before every turn, into ``Turn.probes``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tasks: Sequence[Task],
        split: str,
        prompt: Prompt,
        chat: ChatRenderer,
        params: SamplingParams,
        seed: int,
        context: Context = FULL,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._split = split
        self._prompt = prompt
        self._chat = chat
        self._params = params
        self._seed = seed
        self._context = context
        self._probes = probes or {}
        self._spare: dict[int, list[TextEnv]] = {}  # idle environments of each task, reused

    def play(self, specs: Iterable[EpisodeSpec]) -> list[Episode]:
        """Play these episodes; the result is in the order of ``specs``, failed ones included.

        Episodes are admitted in that order.  A game or an engine that fails ends its own episode with
        ``EndReason.ERROR`` and the cause in ``Episode.error``; nothing is replaced.
        """
        waiting = deque(enumerate(specs))
        episodes: list[Episode | None] = [None] * len(waiting)
        live: dict[int, EpisodeInPlay] = {}
        while waiting or live:
            while waiting and len(live) < self._engine.capacity:
                index, spec = waiting.popleft()
                play = self._begin(spec)
                episodes[index] = play.episode
                if play.is_over:
                    self._retire(play, spec.task)
                else:
                    live[index] = play
                    self._submit(index, play)
            if not live:
                continue
            results = self._engine.poll()
            if not results:
                raise RuntimeError("the engine returned nothing although replies were requested")
            for result in results:
                self._answer(result, live)
        return [episode for episode in episodes if episode is not None]

    def _begin(self, spec: EpisodeSpec) -> EpisodeInPlay:
        spare = self._spare.setdefault(spec.task, [])
        task = self._tasks[spec.task]
        env = spare.pop() if spare else task.make(self._split)
        episode = Episode(
            iteration=spec.iteration,
            wave=spec.wave,
            group=spec.group,
            member=spec.member,
            task=spec.task,
            task_name=task.name,
            instance_seed=spec.instance_seed,
        )
        play = EpisodeInPlay(
            episode, task, env, self._prompt, self._chat, probes=self._probes, context=self._context
        )
        play.begin(noise_seed=self._key("noise", episode))
        return play

    def _submit(self, index: int, play: EpisodeInPlay) -> None:
        episode, turn = play.episode, play.episode.turns[-1]
        if turn.starts_row and len(episode.turns) > 1:
            self._engine.close(index)  # what it holds of the episode is not to be read again
        key = self._key("token", episode, len(episode.turns) - 1)
        self._engine.submit(TurnRequest(index, turn.prefix_tokens, key, self._params))

    def _answer(self, result: TurnResult, live: dict[int, EpisodeInPlay]) -> None:
        play = live[result.episode]
        play.answer(result)
        if play.is_over:
            del live[result.episode]
            self._engine.close(result.episode)
            self._retire(play, play.episode.task)
        else:
            self._submit(result.episode, play)

    def _retire(self, play: EpisodeInPlay, task: int) -> None:
        if play.episode.error:  # an environment that failed is not used again
            _close(play.env)
        else:
            self._spare[task].append(play.env)

    def close(self) -> None:
        """Close the idle environments; the next episodes make new ones."""
        for spare in self._spare.values():
            for env in spare:
                _close(env)
        self._spare.clear()

    def _key(self, purpose: str, episode: Episode, *more: int) -> int:
        address = (episode.iteration, episode.wave, episode.group, episode.member, *more)
        return seeds.key(self._seed, f"{self._split}/{purpose}", *address)


def _close(env: TextEnv) -> None:
    try:
        env.close()
    except Exception as error:  # a game's own code; its episode is over, so the run need not be
        _log.warning("a game of class %s could not be closed: %s", type(env).__name__, error)
