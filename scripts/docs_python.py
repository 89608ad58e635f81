"""Make the Python reference: the API, the contracts of extensions, and all config targets."""

from __future__ import annotations

import docs_conf

# the interfaces that users program against, in addition to the targets of config files
CONTRACTS = [
    "lit_agentrl.api", "lit_agentrl.report.table.Metrics", "lit_agentrl.report.summary.Summary", "lit_agentrl.episode",
    "lit_agentrl.batch", "lit_agentrl.actions", "lit_agentrl.envs.world", "lit_agentrl.envs.base",
    "lit_agentrl.envs.checker", "lit_agentrl.envs.splits", "lit_agentrl.envs.tasks.dataset", "lit_agentrl.text.context",
    "lit_agentrl.text.dialects.base", "lit_agentrl.rewards.base", "lit_agentrl.rollout.structures.base",
    "lit_agentrl.rollout.workers.base", "lit_agentrl.engines.base", "lit_agentrl.rl.objective",
    "lit_agentrl.modules.contract", "lit_agentrl.models.policy",
]  # fmt: skip
ROOMS = {
    "api": "compose a run, train it, evaluate and watch its policy",
    "data": "what flows: episodes, turns, actions, batches",
    "envs": "games, tasks, splits, the checker of the contract",
    "text": "prompts, contexts, condensers, reply grammars",
    "rewards": "reward parts",
    "rl": "the rules of algorithms: one function each, on tensors alone",
    "rollout": "settings of the rollout, structures, workers",
    "engines": "who writes replies",
    "models": "policies and adapters",
    "update": "settings of the update, critics",
    "modules": "what callbacks read of a module",
    "callbacks": "logs, checkpoints, transcripts, display",
    "strategies": "one process or many",
}
HOMES = {"report": "api", "episode": "data", "batch": "data", "actions": "data"}


def list_modules() -> dict[str, list[str]]:
    """Return the modules of each page."""
    target_modules = {
        member.module.path
        for choice in docs_conf.read_choices()
        for target in choice.targets
        if (member := docs_conf.import_target(target))
    }
    pages: dict[str, list[str]] = {room: [] for room in ROOMS}
    for module in [*CONTRACTS, *sorted(target_modules - set(CONTRACTS))]:
        room = module.split(".")[1]
        pages.setdefault(HOMES.get(room, room), []).append(module)
    return pages


def make_pages() -> dict[str, str]:
    """Return the text of every page by its path, in the order of the navigation."""
    pages = {
        f"reference/python/{room}.md": "\n".join([f"# {room}", "", *(f"::: {m}\n" for m in listed)])
        for room, listed in list_modules().items()
    }
    rows = [f"| [{room}]({room}.md) | {ROOMS.get(room, '')} |" for room in list_modules()]
    text = [
        "# Python",
        "",
        "Made from the docstrings of the source.",
        "",
        "| page | holds |",
        "|---|---|",
        *rows,
        "",
    ]
    return {"reference/python/index.md": "\n".join(text)} | pages
