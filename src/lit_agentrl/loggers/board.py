"""Contents of TensorBoard: overview of a run, charts with several lines, closing scores."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lit_agentrl.report import held_out
from lit_agentrl.report import summary as reports
from lit_agentrl.report.table import Metrics

# Metrics that are also written under a name that sorts first, in TIME SERIES and in HPARAMS.  TensorBoard shortens
# long names, but not the part after the last slash.
OVERVIEW = {
    "val/success": "0_overview/1_val_success",
    "val/data_loss": "0_overview/1_val_data_loss",
    "val/data_reward_accuracy": "0_overview/2_val_data_reward_accuracy",
    "rollout/success": "0_overview/2_rollout_success",
    "rollout/return_mean": "0_overview/3_return",
    "rollout/entropy": "0_overview/4_entropy",
    "rollout/return_std_within_group": "0_overview/5_return_std",
    "train/grad_norm": "0_overview/6_grad_norm",
}
SCORES = "0_overview/scores"
CURVE = "0_overview/7_learning_curve"
# the CUSTOM SCALARS tab: charts of several metrics, and of one with its bounds
LAYOUT = {
    "overview": {
        "success: validation, rollout, chance, oracle": (
            "Multiline",
            ["val/success", "rollout/success", "val/chance", "val/oracle"],
        ),
        "success on test, 95 % interval": (
            "Margin",
            ["test/success", "test/success_low", "test/success_high"],
        ),
        "return": ("Multiline", ["rollout/return_mean", "val/return"]),
        "entropy": ("Multiline", ["rollout/entropy"]),
        "standard deviation of returns within a group": ("Multiline", ["rollout/return_std_within_group"]),
        "gradient norm": ("Multiline", ["train/grad_norm"]),
    }
}


def add_overview(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics with copies of those that the overview shows."""
    return {**row, **{copy: row[name] for name, copy in OVERVIEW.items() if name in row}}


def format_scores(summary: reports.Summary) -> str:
    """Format the closing tables of a run.

    The tables show success with its 95 % interval for each game, split and policy, and the metrics of held-out data.
    """
    about = (
        f"**{summary['status']}**: {summary['iterations']} of {summary['planned_iterations']} iterations, seed "
        f"{summary['seed']}."
    )
    measured = held_out.format_markdown(summary["held_out"], reports.STAGES)
    if measured and not summary["games"]:
        return "\n".join([f"{about} Held-out data.", "", *measured])
    lines = [
        f"{about} Success and return with 95 % interval.",
        "",
        "| game | split | policy | iteration | n | success | return |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for game in summary["games"]:
        for stage in ("chance", *reports.STAGES, "oracle"):
            score: reports.Score | None = game[stage]  # type: ignore[literal-required]
            if score is None:
                continue
            iteration = "–" if score["iteration"] is None else score["iteration"]
            cells = [reports.format_estimate(score["success"]), reports.format_estimate(score["return"])]
            lines.append(
                f"| {game['name']} | {game['split']} | {stage} | {iteration} | {score['success']['n']} | "
                f"{' | '.join(cells)} |"
            )
    return "\n".join([*lines, *(["", "Held-out data:", "", *measured] if measured else [])])


def list_test_scores(summary: reports.Summary) -> list[tuple[int, dict[str, float]]]:
    """List success and return on the test split by the iteration of measurement, for charts.

    With several games, the scores are means over games, like ``val/success``, and have no bounds.
    """
    games = [game for game in summary["games"] if game["split"] == "test"]
    scores_by_iteration: dict[int, dict[str, float]] = {}
    for stage in reports.STAGES:
        scores: list[Any] = [game[stage] for game in games]  # type: ignore[literal-required]
        if not scores or None in scores:
            continue
        row = {}
        for name in ("success", "return"):
            estimates = [score[name] for score in scores]
            row[f"test/{name}"] = sum(estimate["mean"] for estimate in estimates) / len(estimates)
            if len(estimates) == 1:
                bounds = {side: estimates[0][side] for side in ("low", "high")}
                row |= {f"test/{name}_{side}": value for side, value in bounds.items() if value is not None}
        scores_by_iteration[scores[0]["iteration"]] = row
    return sorted(scores_by_iteration.items())


def name_score(summary: reports.Summary) -> dict[str, float]:
    """Return the best value in validation under a name that sorts before all options.

    The result is empty if the run has no best value.
    """
    best = summary["monitored"]
    return {} if best is None else {f"0_best {best['name']}": best["value"]}


def should_draw(figure: bool | Literal["auto"]) -> bool:
    """Check whether a figure is drawn; ``auto``: if matplotlib is installed.

    Raises:
        ValueError: ``figure`` has another value, or a figure is requested and matplotlib is not installed.
    """
    if figure not in (True, False, "auto"):
        raise ValueError(f"figure={figure} is unknown; valid: auto, true, false")
    is_installed = importlib.util.find_spec("matplotlib") is not None
    if figure is True and not is_installed:
        raise ValueError(
            "figure=true needs the package matplotlib; install it with: pip install 'lit-agentrl[figures]'"
        )
    return is_installed and figure is not False


def draw_learning_curve(
    metrics: Metrics, summary: reports.Summary, levels: Mapping[str, float]
) -> NDArray[np.uint8]:
    """Draw the success of rollout, validation and test of a run.

    Args:
        metrics: the run's ``metrics.csv``.
        summary: its closing scores.
        levels: success to compare with, such as ``chance`` and ``oracle``.

    Returns:
        An image (height, width, 3 colours; bytes).
    """
    from lit_agentrl.report.page.drawing import create_pixel_figure, render_pixels

    figure, canvas = create_pixel_figure((5.5, 3.4), dpi=140)
    axes: Any = figure.add_subplot()
    axes.plot(*_get_points(metrics, "rollout/success"), label="rollout", color="C0", alpha=0.4)
    axes.plot(*_get_points(metrics, "val/success"), label="validation", color="C0", linewidth=2, marker=".")
    for number, (iteration, row) in enumerate(list_test_scores(summary)):
        mean = row["test/success"]
        low, high = row.get("test/success_low", mean), row.get("test/success_high", mean)
        label = "test, 95 % interval" if number == 0 else None
        bounds = [[mean - low], [high - mean]]
        axes.errorbar([iteration], [mean], yerr=bounds, fmt="o", color="C3", capsize=4, label=label)
    for name, level in levels.items():
        axes.axhline(level, linestyle="--", linewidth=1, color="0.4")
        right_end, coordinates = (1, level), ("axes fraction", "data")
        axes.annotate(name, right_end, xycoords=coordinates, ha="right", va="bottom", color="0.4")
    axes.set(xlabel="iteration", ylabel="success", ylim=(-0.02, 1.1))
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return render_pixels(canvas)


def _get_points(metrics: Metrics, name: str) -> tuple[list[float], list[float]]:
    rows = [(row["iteration"], row.get(name)) for row in metrics.rows]
    known = [(iteration, value) for iteration, value in rows if iteration is not None and value is not None]
    return [iteration for iteration, _ in known], [value for _, value in known]
