"""A warning about worlds whose tools the prompt does not show to the policy."""

from __future__ import annotations

from contextlib import closing

from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.pool import GamePools
from lit_agentrl.text.dialects.base import has_tools_in_template
from lit_agentrl.text.known_words import is_spelt


def describe_hidden_tools(rules: Rules) -> str:
    """Return a warning about worlds with tools that the prompt does not show; else empty.

    A policy whose tokenizer spells the declarations letter by letter is not warned about: it cannot read them, and
    the embedded policies were trained without them.
    """
    style, dialect = rules.prompt.style, rules.chat.dialect
    is_shown = style == "full" or (style == "bare" and has_tools_in_template(dialect))
    if is_shown or "tools" not in dialect.formats:
        return ""
    names = [task.name for index, task in enumerate(rules.tasks) if _has_readable_tools(rules, index)]
    if not names:
        return ""
    verb = "has" if len(names) == 1 else "have"
    return (
        f"{', '.join(names)} {verb} tools, and prompt={style} does not show them to the policy: prompt=full"
    )


def _has_readable_tools(rules: Rules, index: int) -> bool:
    """Return whether a world declares tools in words that the tokenizer knows."""
    with closing(GamePools([rules.tasks[index]], {})) as pools:
        pools.reset(0, 0, split="train", seed=0, noise_seed=0)
        actions = pools.take(0).actions
        pools.release(0, is_broken=False)
    if actions is None or actions.format != "tools":
        return False
    texts = [rules.chat.dialect.instructions(actions, max_actions=1, think=rules.prompt.think)]
    return not is_spelt(rules.chat.tokenizer, [*texts, *(tool.text for tool in actions.tools)])
