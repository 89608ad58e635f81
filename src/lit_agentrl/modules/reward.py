"""A reward model as a LightningModule: the policy's network with a score head."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.distributed import gather_rows
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.lora import merge_adapters
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.reward_model import RewardModelInfo, hash_weights, load_head, save_head
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.report.verdicts import NEAR, PAIRS, convert_to_outcomes, name_head_game
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.objective import Objective, Tensors
from lit_agentrl.rl.preference.judging import Verdicts, judge, sign_metrics
from lit_agentrl.rl.preference.reward_losses import is_end
from lit_agentrl.rl.preference.several_heads import of_head
from lit_agentrl.rl.preference.step_labels import step_metrics
from lit_agentrl.rl.preference.units import trajectory_units
from lit_agentrl.screen import note
from lit_agentrl.text.token_bytes import hash_tokenizer


class RewardModule(PolicyModule):
    """Module that trains the policy's network and a head on it to score recorded episodes.

    The head is new, unless the policy was loaded from the folder of a reward model of the same kind: then that model's
    head is trained further.

    An evaluation compares all held-out pairs.  Code that reads evaluations sees each pair as an episode: a success if
    the scores rank the pair correctly, with the margin as its return and the prompt as its group.

    Args:
        policy: Network and tokenizer; the network is trained in place.
        objective: An objective that reads ``score_BT``; see ``rl/preference/reward_losses.py``.
        seed: Run seed, also of the head's initial weights.
        options: Other options of `AgentModule`.
    """

    score_mean: Tensor
    score_std: Tensor

    def __init__(self, policy: Policy, *, objective: Objective, seed: int = 0, **options: Any) -> None:
        count = len(objective.heads)
        head = ScoreHead(policy.network.config.get_text_config().hidden_size, seed=seed, heads=count or None)
        if load_head(policy.name, head, kind=objective.score_kind, heads=objective.heads):
            note(f"training continues from the score head of {policy.name}")
        head.to(policy.network.dtype)
        output: Any = policy.network.get_output_embeddings()  # type: ignore[no-untyped-call]
        inputs: Any = policy.network.get_input_embeddings()
        if output is not None and output.weight is not inputs.weight:
            output.weight.requires_grad_(False)  # no score depends on the output layer
        super().__init__(policy, objective=objective, seed=seed, head=head, **options)
        shape = (count,) if count else ()
        self.register_buffer("score_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("score_std", torch.ones(shape, dtype=torch.float64))

    def setup(self, stage: str) -> None:
        """Set up like `AgentModule`, and refuse sharded strategies.

        Raises:
            ValueError: If the strategy shards networks.
        """
        super().setup(stage)
        if self._hooks.is_sharded:
            raise ValueError("strategy=fsdp cannot shard a reward model; use strategy=ddp or single")

    # ------------------------------------------------------------------ evaluation
    def validation_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._compare_pairs("val", batch)

    def test_step(self, batch: StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._compare_pairs("test", batch)

    @torch.no_grad()
    def _compare_pairs(self, split: str, batch: StepBatch) -> None:
        rows = (batch.trajectories or TrajectoryBatch.make_empty()).to(self.device).trim().to_dict()
        rows |= {name: column.to(self.device) for name, column in batch.columns.items()}
        units = bind(trajectory_units, rows)
        prepared = self.objective.prepare(rows)
        is_end_BT = is_end(units, rows["is_action_BT"])
        score_BT = self.updater.networks.compute_head_scores(
            rows | {"is_scored_BT": prepared["is_scored_BT"] | is_end_BT}
        )
        if heads := self.objective.heads:
            inputs = {
                f"head_{name}_": of_head(rows | {"score_BTH": score_BT}, k) for k, name in enumerate(heads)
            }
            columns = [of_head(rows | prepared, k) for k in range(len(heads))]
        else:
            inputs, columns = {"": rows | {"score_BT": score_BT}}, [prepared]
        tables, means, stds = [], [], []
        for (prefix, head_rows), prepared_columns in zip(inputs.items(), columns, strict=True):
            verdicts, scores_S, metrics = _judge_head(head_rows, prepared_columns, is_end_BT)
            self.row |= {f"{split}/{prefix}{name}": value for name, value in metrics.items()}
            tables.append(verdicts.table_PC)
            means.append(scores_S.mean())
            stds.append(measure_scale(scores_S))
        verdicts = Verdicts(torch.cat(tables))
        overall = verdicts.metrics()
        self.row |= {f"{split}/{name}": value for name, value in overall.items()}
        self.log(f"{split}/success", overall.get("success", 0.0), logger=False, batch_size=1, sync_dist=False)
        batch.outcomes = [*convert_to_outcomes(verdicts, PAIRS), *convert_to_outcomes(verdicts, NEAR)]
        for name, table_PC in zip(heads, tables, strict=False):
            batch.outcomes += convert_to_outcomes(Verdicts(table_PC), name_head_game(name))
        if split == "val":
            self.score_mean.copy_(torch.stack(means).view_as(self.score_mean))
            self.score_std.copy_(torch.stack(stds).view_as(self.score_std))

    def on_validation_epoch_end(self) -> None:
        """Do nothing: the row is already complete."""

    def on_test_epoch_end(self) -> None:
        """Do nothing: the row is already complete."""

    # ------------------------------------------------------------------ saving
    def export(self, folder: str | Path, network: Any = None) -> None:
        """Write the policy, the head and their record; see `AgentModule`."""
        super().export(folder, network)
        assert self.head is not None
        head = copy.deepcopy(self.head).cpu()
        plain = self.policy.network if network is None else network
        if self.policy.adapters is not None:
            plain = merge_adapters(plain)
        about = RewardModelInfo(
            kind=self.objective.score_kind,
            fingerprint=hash_weights(plain, head), tokenizer=hash_tokenizer(self.policy.tokenizer),
            algo=self.objective.name, **self._get_score_scale(),
        )  # fmt: skip
        save_head(folder, head, about)

    def _get_score_scale(self) -> dict[str, Any]:
        """Return mean and std of the scores, per head if there are several."""
        if not self.objective.heads:
            return {"mean": float(self.score_mean), "std": float(self.score_std)}
        numbers = zip(self.score_mean.tolist(), self.score_std.tolist(), strict=True)
        return {"heads": dict(zip(self.objective.heads, numbers, strict=True))}


def measure_scale(scores_S: Tensor) -> Tensor:
    """Return the std of scores, at least 1e-6; 1 for a single score."""
    return scores_S.std().clamp(min=1e-6) if len(scores_S) > 1 else torch.ones_like(scores_S.sum())


def _judge_head(
    rows: Tensors, prepared: Tensors, is_end_BT: Tensor
) -> tuple[Verdicts, Tensor, dict[str, float]]:
    """Compute verdicts, scores and metrics of one head, over all ranks.

    Args:
        rows: Columns with ``score_BT``; ``return_B`` is the target of the head.
        prepared: Columns of `Objective.prepare`.
        is_end_BT: True at the last sampled token of each trajectory.
    """
    score_BT = rows["score_BT"]
    is_scored_BT = prepared["is_scored_BT"] | (is_end_BT & ~rows["return_B"].isnan()[:, None])
    table, _ = gather_rows({"table": judge(rows, score_BT).table_PC})
    verdicts = Verdicts(table["table"].cpu())
    gathered, _ = gather_rows({"scores": score_BT[is_end_BT].double()})
    scores_S = gathered["scores"]
    metrics = verdicts.metrics()
    metrics["score_mean"] = float(scores_S.mean())
    if len(scores_S) > 1:
        metrics["score_std"] = float(scores_S.std())
    if "is_costly_BT" in prepared:
        signs = {"score": score_BT[is_end_BT].double(), "is_costly": prepared["is_costly_BT"][is_end_BT]}
        metrics |= sign_metrics(gather_rows(signs)[0])
    if "good_BT" in prepared:
        columns = {"score": score_BT, "turn": rows["turn_BT"], "good": prepared["good_BT"]}
        steps = {name: column[is_scored_BT].double() for name, column in columns.items()}
        metrics |= step_metrics(gather_rows(steps)[0])
    return verdicts, scores_S, metrics
