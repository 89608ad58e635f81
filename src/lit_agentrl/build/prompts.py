"""What games say and prompts come to, tried on random play before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.build.matching import match_game
from lit_agentrl.report.iteration import failure
from lit_agentrl.requirements import Part
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rollout.rehearsal import rehearse
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt


def check_thinking(chat: ChatRenderer, prompt: Prompt, name: str) -> None:
    """Refuse a format without thinking where the template of the policy of that name thinks all the same.

    Raises:
        ValueError: naming the option and the remedy.
    """
    if chat.forced_think and not prompt.think:
        raise ValueError(
            f"prompt.think=false: the chat template of {name} opens a think block whatever is asked; set "
            "prompt.think=true, or another template, such as model.chat_template=append_only_chatml"
        )


def check_prompts(
    rules: Rules,
    *,
    rewards: RewardPipeline | None = None,
    num_trained: int = 0,
    parts: Sequence[Part] = (),
) -> None:
    """Refuse games that fail or do not tell what is asked, and prompts that cannot be read or leave no room.

    Args:
        rules: games, wording and limits.
        rewards: tried on the games that are trained on.
        num_trained: so many games, the first ones.
        parts: what else the run consists of, which may require something of a game.

    Raises:
        ValueError: naming the game or the part, and the remedy.
    """
    chat, max_context_tokens = rules.chat, rules.max_context_tokens
    unknown = chat.tokenizer.unk_token_id
    if unknown in chat.end_of_turn_ids:  # a tokenizer that knows every byte has no other use for it
        unknown = None
    for index, task in enumerate(rules.tasks):
        played = list(rehearse(rules, index, is_trained=index < num_trained))
        if all(episode.failed for episode in played):
            raise ValueError(f"env: every episode that was tried failed; the first, {failure(played[0])}")
        first = next(episode.turns[0] for episode in played if episode.turns)
        tokens = first.prefix_tokens
        if len(tokens) >= max_context_tokens:
            raise ValueError(
                f"rollout.max_context_tokens={max_context_tokens} leaves no room for a reply: the prompt of "
                f"{task.name} alone has {len(tokens)} tokens"
            )
        if index < num_trained:
            match_game(task, played, parts)
        if unknown is not None and unknown in tokens:
            raise ValueError(
                f"the tokenizer does not know {list(tokens).count(unknown)} tokens of the prompt of {task.name}; "
                "use prompt=compact, a game written in its vocabulary, or another model"
            )
        later = [turn for episode in played for turn in episode.turns[1:]]
        if unknown is not None and any(unknown in turn.prefix_tokens for turn in later):
            raise ValueError(
                f"the tokenizer does not know a token of what {task.name} shows after the first turn; write "
                "its observations, and what context.condense returns, in its vocabulary, or use another model"
            )
        if rewards is not None and index < num_trained:
            rewards.try_out(played)
