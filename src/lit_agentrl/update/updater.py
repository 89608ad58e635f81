"""One iteration's update: scores of before -> the objective's columns -> passes over minibatches -> coefficients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import seeds
from lit_agentrl.batch import LEFT_OUT
from lit_agentrl.checks import name_errors
from lit_agentrl.distributed import gather_rows, max_over_ranks, mean_over_ranks, sum_over_ranks
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.logprobs import ensure_float32
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.models.policy import Policy
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.objective import ALWAYS, Objective, Term, add_metrics, metric_values
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.update.critic import Critic, explained
from lit_agentrl.update.gradients import by_spread
from lit_agentrl.update.kept import KeptReference
from lit_agentrl.update.microbatches import kept_rows
from lit_agentrl.update.minibatches import minibatches, plural, with_fillers
from lit_agentrl.update.networks import Networks
from lit_agentrl.update.progress import Loop, Progress
from lit_agentrl.update.reference import Reference, Start
from lit_agentrl.update.settings import UpdateSettings
from lit_agentrl.update.step import Stepper, asks_old

Tensors = dict[str, Tensor]


class Updater:
    """Trains a network, and a critic beside it, on the rows of one iteration after another; knows no Lightning.

    Args:
        objective: what is trained.
        settings: passes, minibatches, micro-batches, clipping.
        policy: its network is trained in place; what is done about its routers is its own.
        critic: learns values beside it, or None.
        temperature: sampling temperature of the rows.
        seed: run seed; minibatches are drawn with it.
        reference: which network the reference is, where the objective asks for one; None: the start.
        is_reference_given: rows come with ``ref_logp_BT``, so that no reference is kept.
        kept: has what a reference that stands still says of all rows; then that is let go before the first step.
        head: of a reward model; the network is then trained below it.

    Raises:
        ValueError: gradients of buckets are asked for, and the objective has no advantages.

    Attributes:
        progress: steps taken and skipped.
        networks: those that are trained and read.
        reference: which network of these the reference is.
    """

    def __init__(
        self,
        objective: Objective,
        settings: UpdateSettings,
        policy: Policy,
        *,
        critic: Critic | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        reference: Reference | None = None,
        is_reference_given: bool = False,
        kept: KeptReference | None = None,
        head: ScoreHead | None = None,
    ) -> None:
        if settings.gradients is not None and not isinstance(objective, Algorithm):
            raise ValueError(
                f"update.gradients measures what advantages teach, and algo={objective.name} has none; set "
                "update/gradients=none"
            )
        self.objective = objective
        self.settings = settings
        self.progress = Progress(settings.max_bad_steps)
        has_reference = objective.needs("ref_logp_BT") and not is_reference_given
        self.reference = reference or Start()
        read = self.reference.make(policy, objective.requirements.reference_dtype) if has_reference else None
        self._kept = kept
        if kept is not None and read is not None:
            self._weights = (
                hash_parameters(read) if policy.adapters is None else policy.adapters["fingerprint"]
            )
        with name_errors("update"):  # where the settings of an update stand
            self.networks = Networks(
                policy.network, critic=critic, reference=read, settings=settings, temperature=temperature,
                routing=policy.routing, head=head,
            )  # fmt: skip
        self._stepper = Stepper(objective, settings, self.networks, self.progress)
        self._seed = seed

    @property
    def units(self) -> str:
        """The column whose equal numbers stay together in a minibatch and on a rank."""
        return self.objective.unit or "trajectory_B"

    def update(
        self, tensors: Tensors, loop: Loop, *, iteration: int, is_filtered: bool = False
    ) -> dict[str, float]:
        """Train on the rows; returns metrics.  A collective.

        Args:
            tensors: this rank's columns, on the loop's device; there may be no row.
            loop: lends optimizers and backward.
            iteration: minibatches are a function of it and the seed.
            is_filtered: too few units for the minibatches are then skipped, instead of an error of the config.

        Raises:
            ValueError: fewer units than minibatches, or too many iterations in a row without anything to train on.
            NotFinite: gradients or weights are not finite.
        """
        if not self.objective.trains:
            return {}
        self.progress.skipped = 0
        if self._kept is not None and self.networks.reference is not None:
            self._keep(self._kept, loop)
        row: dict[str, float] = {}
        if not self.progress.is_nothing(len(tensors["tokens_BT"]) == 0, "filter kept no group", loop):
            tensors = self._with_old_scores(tensors, loop)
            if (prepared := self._prepared(tensors, loop, row)) is not None and not (
                self._is_too_little(prepared, is_filtered, loop)
            ):
                self._train(prepared, loop, iteration, row)
        if self.networks.reference is not None:
            self.reference.move(self.networks.reference, self.networks.policy, iteration)
        if self.progress.skipped:
            row["train/skipped_steps"] = float(self.progress.skipped)
        return row

    # ------------------------------------------------------------------ before the first step
    def _keep(self, kept: KeptReference, loop: Loop) -> None:
        """Have the reference score all rows, and let it go."""
        reference: Any = self.networks.reference
        precision = ensure_float32(torch.empty(0, dtype=reference.dtype)).dtype
        about = {"weights": self._weights, "is_sharded": loop.hooks.is_sharded}
        kept.fill(
            partial(self.networks.reference_logp, hooks=loop.hooks),
            about | self.networks.computed(loop.device),
            like=torch.empty(0, dtype=precision, device=loop.device),
        )
        self.networks.reference = None

    def _with_old_scores(self, tensors: Tensors, loop: Loop) -> Tensors:
        """With the networks' columns; old log-probs are the sampler's own, unless both are asked for."""
        if bool(tensors["is_action_BT"][:, :1].any()):
            raise ValueError("the first token of a row is an action: nothing precedes it that could score it")
        if self.networks.head is not None:  # nobody asks for log-probs
            return tensors
        tensors = {**tensors, "old_logp_BT": tensors["sampler_logp_BT"]}
        if self.networks.routing.replay == "old":
            tensors["experts_BK"] = self.networks.experts(tensors)
        is_unknown_BT = tensors["sampler_logp_BT"].isnan()  # in data sets of texts
        is_unknown = bool(max_over_ranks(is_unknown_BT.any().float()))
        is_unknown = is_unknown and asks_old(self.objective, self.settings)
        if is_unknown or self.objective.needs("sampler_logp_BT"):
            tensors["old_logp_BT"] = self.networks.logp(tensors)
        if is_unknown:
            known_BT = torch.where(is_unknown_BT, tensors["old_logp_BT"], tensors["sampler_logp_BT"])
            tensors["sampler_logp_BT"] = known_BT
        if self._kept is not None:
            tensors["ref_logp_BT"] = self._kept.of(tensors)
        elif self.networks.reference is not None:
            tensors["ref_logp_BT"] = self.networks.reference_logp(tensors, loop.hooks)
        if (critic := self.networks.critic) is not None:
            found = self.networks.valued(tensors)
            kept = ("value_BT", "implicit_q_BT")
            tensors |= found | {f"old_{n}": values for n, values in found.items() if n.endswith(kept)}
            if critic.slow is not None:
                tensors |= self.networks.target_values(tensors)
        return tensors

    def _prepared(self, tensors: Tensors, loop: Loop, row: dict[str, float]) -> Tensors | None:
        """With the objective's columns, made from the rows of all ranks, of the kept rows; None where none is left."""
        given = {name: t for name, t in tensors.items() if name in ALWAYS or self.objective.needs(name)}
        everyone, mine = gather_rows(given, tensors["trajectory_B"])
        with torch.no_grad():
            found = self.objective.prepare(everyone)
        if "is_kept_BT" in found:
            count = everyone["is_action_BT"].sum().clamp(min=1)
            row["train/kept_token_share"] = float(found["is_kept_BT"].sum() / count)
        keep_B = found.pop("keep_B", None)
        row |= {f"train/{name}": float(found.pop(name)) for name in list(found) if not found[name].dim()}
        width = tensors["is_action_BT"].shape[1]
        for name, column in found.items():
            tensors[name] = column[mine, :width] if name.endswith("_BT") else column[mine]
        if (left_out_BT := tensors.pop(LEFT_OUT, None)) is not None:
            masks = [name for name in ("is_action_BT", "is_value_target_BT") if name in tensors]
            tensors |= {name: tensors[name] & ~left_out_BT for name in masks}
        if keep_B is None:
            return tensors
        row["train/kept_row_share"] = float(keep_B.float().mean())
        if self.progress.is_nothing(not bool(keep_B.any()), "algo.rows kept no row", loop):
            return None
        return kept_rows(
            tensors, keep_B[mine], at_least=self.settings.minibatches, units=self.units,
            among=(everyone[self.units], keep_B),
        )  # fmt: skip

    def _is_too_little(self, tensors: Tensors, is_filtered: bool, loop: Loop) -> bool:
        """Whether a filter has left less than every minibatch needs; without one, that is an error of the config."""
        own = torch.tensor(len(torch.unique(tensors[self.units])), device=loop.device)
        count, minimum = int(sum_over_ranks(own)), self.settings.minibatches
        return self.progress.is_nothing(
            is_filtered and count < minimum,
            f"filter left too few {plural(self.units)} for update.minibatches={minimum}",
            loop,
        )

    # ------------------------------------------------------------------ steps
    def _train(self, tensors: Tensors, loop: Loop, iteration: int, row: dict[str, float]) -> None:
        critic = self.networks.critic
        for term in self.objective.terms():
            if term.is_before:
                row |= self._moved(term, tensors, {}, row)
        if (watch := self.settings.gradients) is not None and watch.is_due(iteration):
            row |= self._gradients(tensors, watch.buckets, loop)
        is_warming_up = critic is not None and iteration < critic.warmup_iterations
        totals: Tensors = {}
        steps, is_taken = 0, True
        for epoch in range(self.settings.epochs):
            generator = torch.Generator().manual_seed(
                seeds.make_key(self._seed, "minibatch", iteration, epoch)
            )
            tensors, parts = minibatches(
                tensors, count=self.settings.minibatches, units=self.units, generator=generator,
                deal=loop.hooks.deal,
            )  # fmt: skip
            for rows in parts:
                metrics, is_taken = self._stepper.step(
                    tensors, rows.to(loop.device), loop, is_fresh=not steps, is_warming_up=is_warming_up
                )
                totals = add_metrics(totals, metrics)
                if not is_taken:
                    break
                steps += 1
            if not is_taken:
                break
        if self.settings.stop is not None:
            row["train/steps"] = float(steps)
        self.progress.require_finite_weights(loop)
        if critic is not None:
            row["critic/explained_variance"] = explained(tensors)
            if "cost_return_BT" in tensors:
                row["critic/cost_explained_variance"] = explained(tensors, "cost_")
        for term in self.objective.terms():
            if not term.is_before:
                row |= self._moved(term, tensors, totals, row)
        self._log(totals, steps, loop, row)
        loop.step_schedules()

    def _gradients(self, tensors: Tensors, buckets: int, loop: Loop) -> dict[str, float]:
        """Of each bucket of groups its spread, and the gradient norms of task and regularisers; no weight moves."""
        names = ("return_B", "group_B", "trajectory_B")
        everyone, _ = gather_rows({name: tensors[name] for name in names}, tensors["trajectory_B"])
        groups, bucket, spread = by_spread(**everyone, buckets=buckets)
        is_of_BG = tensors["group_B"][:, None] == groups
        part_B = torch.where(is_of_BG, bucket, -1).amax(1)
        rows, part_B = with_fillers(tensors, part_B.cpu(), len(spread))
        found: dict[str, float] = {}
        for number, points in enumerate(spread.tolist()):
            own = torch.nonzero(part_B == number).squeeze(1).to(loop.device)
            task, regulariser = self._stepper.gradients(rows, own, loop)
            found |= {
                f"gradients/spread_{number + 1}": points, f"gradients/task_{number + 1}": float(task),
                f"gradients/regulariser_{number + 1}": float(regulariser),
            }  # fmt: skip
        return found

    def _moved(
        self, term: Term, tensors: Tensors, totals: Tensors, row: dict[str, float]
    ) -> dict[str, float]:
        """Tells a term what it goes by; returns what it says of itself."""
        tensors = self.objective.measured(tensors)
        is_action_BT = tensors["is_action_BT"]
        if term.measured_by is None and term.is_before:
            measured = row[f"train/{term.measure}"]
        elif term.measured_by is None:
            total, count = sum_over_ranks(totals[term.measure]).tolist()
            measured = total / max(count, 1.0)
        elif term.is_before:
            measured = mean_over_ranks(bind(term.measured_by, tensors), is_action_BT)
        else:  # of the policy after the update
            now = tensors | {"logp_BT": self.networks.logp(tensors)}
            measured = row[f"train/{term.measure}"] = mean_over_ranks(
                bind(term.measured_by, now), is_action_BT
            )
        return term.update(measured, int(sum_over_ranks(is_action_BT.sum())))

    def _log(self, totals: Tensors, steps: int, loop: Loop, row: dict[str, float]) -> None:
        loss = float(sum_over_ranks(totals.pop("loss")[0]))
        totals = {
            n: max_over_ranks(v) if n.endswith("_max") else sum_over_ranks(v) for n, v in totals.items()
        }
        for name, value in metric_values(totals).items():
            row[f"critic/{name[7:]}" if name.startswith("critic_") else f"train/{name}"] = value
        row["train/loss"] = loss / steps
        row["train/lr"] = float(loop.optimizers[0].param_groups[0]["lr"])
