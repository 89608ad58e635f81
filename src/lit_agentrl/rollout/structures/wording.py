"""What the policy is asked about its episodes, in words; what it and games have written is quoted without tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.lessons import Operation, without_tags

_GRAMMAR = """Answer in JSON and nothing else, with a list of objects, each of which is one of
{"operation": "add", "content": "a new lesson"}
{"operation": "update", "id": "G0", "content": "the lesson in better words"}
{"operation": "delete", "id": "G0"}
{"operation": "merge", "ids": ["G0", "G1"], "content": "one lesson in place of these"}
{"operation": "none"}"""


def listed(items: Mapping[str, str]) -> str:
    """The lessons as they stand in prompts, one a line; empty without any."""
    return "\n".join(f"{name}: {text}" for name, text in items.items())


def for_summary(episode: Episode, limit: int) -> str:
    """Asks what happened in an episode, of which so many characters are shown."""
    turns = [f"Game:\n{turn.observation}\nYou:\n{turn.reply_text}" for turn in episode.turns]
    return (
        f"You played an episode of {episode.task_name}:\n\n{_cut(without_tags(chr(10).join(turns)), limit)}\n\n"
        f"The game was {_outcome(episode)}. Say in at most 60 words what was done, step by step, and which decision "
        "was right or wrong."
    )


def for_lessons(episodes: Sequence[Episode], summaries: Sequence[str], number: int) -> str:
    """Asks what the solved episodes of a group did better than the others."""
    told = [
        f"Episode {k}, {_outcome(episode)}: {_cut(without_tags(summary), 1000)}"
        for k, (episode, summary) in enumerate(zip(episodes, summaries, strict=True), start=1)
    ]
    return (
        f"These episodes of {episodes[0].task_name} began alike:\n\n{chr(10).join(told)}\n\n"
        f"Compare those that were solved with the others. Write at most {number} general lessons for other episodes of "
        "this game, one a line, each of at most 30 words. Leave out what is true of this instance alone."
    )


def for_operations(items: Mapping[str, str], lessons: str) -> str:
    """Asks what new lessons change in the list."""
    return (
        f"This list of lessons stands in the prompt of every episode:\n{listed(items) or '(empty)'}\n\n"
        f"New lessons:\n{_cut(without_tags(lessons), 4000)}\n\nWhat is to be done to the list? {_GRAMMAR}"
    )


def for_one_list(items: Mapping[str, str], proposals: Sequence[Sequence[Operation]]) -> str:
    """Asks for one list of operations in place of several."""
    told = [json.dumps([each.to_json() for each in one], ensure_ascii=False) for one in proposals]
    return (
        f"This list of lessons stands in the prompt of every episode:\n{listed(items) or '(empty)'}\n\n"
        f"Changes were proposed independently of each other:\n{chr(10).join(told)}\n\n"
        f"Make one list of changes of them that neither repeats nor contradicts itself. {_GRAMMAR}"
    )


def _outcome(episode: Episode) -> str:
    return f"{'solved' if episode.success else 'not solved'} with {episode.training_return:.2f} points"


def _cut(text: str, limit: int) -> str:
    """Its beginning and its end, where it is longer."""
    if len(text) <= limit:
        return text
    return f"{text[: (limit + 1) // 2]} … {text[len(text) - limit // 2 :]}"
