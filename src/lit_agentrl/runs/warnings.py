"""Collect the warnings of a run: options without effect, hidden tools, recorded data, threads."""

from __future__ import annotations

from lit_agentrl.build.assembly import Run
from lit_agentrl.build.games import describe_repeated_rows
from lit_agentrl.build.hidden_tools import describe_hidden_tools
from lit_agentrl.build.precision import describe_lost_steps, describe_uncorrected
from lit_agentrl.build.recorded import describe_default_world
from lit_agentrl.build.structure import describe_missing_repeats
from lit_agentrl.build.unused_options import (
    describe_blind_turns,
    describe_idle_processes,
    describe_idle_reference,
    describe_inactive_bounds,
    describe_own_imitation,
)
from lit_agentrl.facts import READS_OLD_LOG_PROBS
from lit_agentrl.runs import run_folder


def collect_warnings(run: Run, threads_note: str | None) -> list[str]:
    """Return the warnings about options without effect, hidden tools, recorded data and threads."""
    rollout = run.cfg.rollout
    processes = run.trainer.world_size if run.stream.plays else 1
    overrides = run_folder.read_overrides(run.folder)
    is_judged_by_world = bool(run.games.val and not run.stream.plays)
    is_older = rollout.overlap or READS_OLD_LOG_PROBS in run.structure.requires
    warnings = (
        describe_inactive_bounds(
            run.module,
            is_older=is_older,
            overrides=overrides,
        ),
        describe_blind_turns(run.module.objective, run.games, overrides) if run.stream.plays else "",
        describe_hidden_tools(run.rules),
        describe_own_imitation(run.module.objective, overrides) if run.stream.plays else "",
        describe_idle_reference(
            run.module.objective,
            run.module.updater.settings,
            overrides,
            is_older=is_older or run.recorded is not None,
        ),
        describe_default_world(overrides, name=run.games.tasks[0].name) if is_judged_by_world else "",
        describe_repeated_rows(run.games),
        describe_missing_repeats(run.structure, run.games, rollout.get("instances")),
        describe_idle_processes(rollout.prompts, processes),
        describe_uncorrected(run.cfg),
        describe_lost_steps(run.cfg, run.module.optim) if run.module.objective.trains else "",
        *(run.recorded.notes if run.recorded else ()),
        threads_note,
    )
    return [line for line in warnings if line]
