"""The update of an iteration, from scoring its rows to its last optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lit_agentrl import seeds
from lit_agentrl.checks import name_errors
from lit_agentrl.distributed import gather_rows, max_over_ranks, mean_over_ranks, sum_over_ranks
from lit_agentrl.models.heads import ScoreHead
from lit_agentrl.models.logprobs import ensure_float32
from lit_agentrl.models.lora import hash_parameters
from lit_agentrl.models.policy import Policy
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.objective import Objective, Term, add_metrics, metric_values
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.update.critic import Critic, compute_explained_variance
from lit_agentrl.update.gradients import assign_buckets
from lit_agentrl.update.minibatches import add_fillers, name_units, prepare_rows, split_minibatches
from lit_agentrl.update.networks import Networks
from lit_agentrl.update.progress import Loop, Progress
from lit_agentrl.update.reference import Reference, Start
from lit_agentrl.update.reference_cache import ReferenceCache
from lit_agentrl.update.settings import UpdateSettings
from lit_agentrl.update.step import Stepper, needs_old_logps

Tensors = dict[str, Tensor]


class Updater:
    """Trainer of a network and an optional critic on the rows of iterations, without Lightning.

    Args:
        objective: the training objective.
        settings: passes, minibatches, micro-batches, clipping.
        policy: the policy, whose network is trained in place; it also says how routers are treated.
        critic: the critic to train, or None.
        temperature: sampling temperature of the rows.
        seed: seed of the run, used to draw minibatches.
        reference: rule that makes the reference if the objective needs one; None for the initial policy.
        is_reference_given: whether rows contain ``ref_logp_BT``, so that no reference is needed.
        reference_cache: log-probs of a fixed reference; the reference is freed before the first step.
        head: head of a reward model, trained with the network below it.

    Raises:
        ValueError: gradient norms of buckets are requested, but the objective has no advantages; or the objective reads
            the logits of the reference in each step, and an option does not allow that.

    Attributes:
        progress: steps taken and skipped.
        networks: the networks that are trained and read.
        reference: rule that makes and moves the reference.
        observe: called with the rows and all their columns before the first step of each update, for records; or None.
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
        reference_cache: ReferenceCache | None = None,
        head: ScoreHead | None = None,
    ) -> None:
        if settings.gradients is not None and not isinstance(objective, Algorithm):
            raise ValueError(
                f"update.gradients needs advantages, and algo={objective.name} has none; set "
                "update/gradients=none"
            )
        self.objective = objective
        self.settings = settings
        self.progress = Progress(settings.max_bad_steps)
        reads_logits = objective.needs("ref_kl_BT")
        has_reference = reads_logits or (objective.needs("ref_logp_BT") and not is_reference_given)
        self.reference = reference or Start()
        dtype = objective.requirements.reference_dtype
        reference_network = self.reference.make(policy, dtype) if has_reference else None
        self._cache = reference_cache
        if reference_cache is not None and reference_network is not None:
            self._reference_fingerprint = (
                hash_parameters(reference_network)
                if policy.adapters is None
                else policy.adapters["fingerprint"]
            )
        with name_errors("update"):  # the config key of these settings
            self.networks = Networks(
                policy.network, critic=critic, reference=reference_network, settings=settings, temperature=temperature,
                routing=policy.routing, head=head,
            )  # fmt: skip
        if reads_logits:
            self._check_reference_logits()
        self._stepper = Stepper(objective, settings, self.networks, self.progress)
        self._seed = seed
        self.observe: Callable[[Tensors], None] | None = None

    def _check_reference_logits(self) -> None:
        """Refuse options under which steps cannot read the logits of the reference."""
        reason = (
            "the KL over the vocabulary reads the reference in every step; use algo/margin=sequence_kl, or"
        )
        if self._cache is not None:
            raise ValueError(
                f"data.cache_reference stores only log-probs of the reference: {reason} set data.cache_reference=false"
            )
        if self.settings.lanes > 1:
            raise ValueError(f"update.lanes={self.settings.lanes}: {reason} set update.lanes=1")
        if self.networks.reference is self.networks.policy and self.networks.has_observed_routers:
            raise ValueError(
                f"model.router_loss and model.routing_replay observe one pass of the network: {reason} set neither, or "
                "train without model/lora"
            )

    @property
    def units(self) -> str:
        """Column whose equal numbers stay together in a minibatch and on a rank."""
        return self.objective.unit or "trajectory_B"

    def update(
        self, tensors: Tensors, loop: Loop, *, iteration: int, is_filtered: bool = False
    ) -> dict[str, float]:
        """Train on the rows and return metrics; a collective.

        Args:
            tensors: this rank's columns on the loop's device, possibly without rows.
            loop: optimizers and backward pass.
            iteration: number of the iteration; minibatches depend on it and on the seed.
            is_filtered: whether to skip an iteration with too few units for the minibatches instead of raising.

        Raises:
            ValueError: there are fewer units than minibatches, or too many consecutive iterations have no rows.
            NotFinite: gradients or weights are not finite.
        """
        if not self.objective.trains:
            return {}
        self.progress.skipped = 0
        self._fill_cache(loop)
        logged: dict[str, float] = {}
        if not self.progress.skip_if_empty(len(tensors["tokens_BT"]) == 0, "filter kept no group", loop):
            tensors = self._add_old_scores(tensors, loop)
            prepared = self._prepare(tensors, logged, at_least=self.settings.minibatches)
            if prepared is None:
                self.progress.skip_if_empty(True, "algo.rows kept no row", loop)
            elif not self._skip_if_too_few_units(prepared, is_filtered, loop):
                self._train(prepared, loop, iteration, logged)
        if self.networks.reference is not None:
            self.reference.move(self.networks.reference, self.networks.policy, iteration)
        if self.progress.skipped:
            logged["train/skipped_steps"] = float(self.progress.skipped)
        return logged

    def measure(self, tensors: Tensors, loop: Loop, *, with_nll: bool = False) -> dict[str, float]:
        """Compute the objective and its metrics on rows that are not trained on; a collective.

        Nothing is changed: neither weights nor coefficients nor counters.

        Args:
            tensors: as in `update`, with the rows of held-out data.
            loop: as in `update`; its optimizers are not used.
            with_nll: whether to also return ``nll``, the mean of -log p of the sampled tokens, and ``perplexity``, its
                exponential.

        Returns:
            ``loss``, the mean over these rows, and the metrics that training logs as ``train/NAME``; only the results
            of ``with_nll`` if no rank has a row that the objective reads.
        """
        if not self.objective.trains or not bool(
            max_over_ranks(torch.tensor(float(len(tensors["tokens_BT"]))))
        ):
            return {}
        self._fill_cache(loop)
        tensors = self._add_old_scores(tensors, loop)
        logged = self._measure_nll(tensors) if with_nll else {}
        if (prepared := self._prepare(tensors, {}, at_least=1)) is None:
            return logged
        rows, _ = add_fillers(prepared, torch.zeros(len(prepared["tokens_BT"]), dtype=torch.int64), 1)
        totals = self._stepper.measure_loss(rows, loop)
        loss = float(sum_over_ranks(totals.pop("loss")[0]))
        return {"loss": loss, **metric_values(_sum_metrics(totals)), **logged}

    def _measure_nll(self, tensors: Tensors) -> dict[str, float]:
        """Compute the mean of -log p of sampled tokens, and its exponential."""
        is_action_BT = tensors["is_action_BT"]
        nll_BT = torch.where(is_action_BT, -self.networks.compute_logp(tensors), 0.0).double()
        nll = float(sum_over_ranks(nll_BT.sum())) / max(
            float(sum_over_ranks(is_action_BT.sum().double())), 1.0
        )
        return {"nll": nll, "perplexity": math.exp(min(nll, 700.0))}

    # ------------------------------------------------------------------ before the first step
    def _fill_cache(self, loop: Loop) -> None:
        """Fill the cache of reference log-probs, if there is one, and free the reference."""
        cache, reference = self._cache, self.networks.reference
        if cache is None or reference is None:
            return
        precision = ensure_float32(torch.empty(0, dtype=reference.dtype)).dtype
        about = {"weights": self._reference_fingerprint, "is_sharded": loop.hooks.is_sharded}
        cache.fill(
            partial(self.networks.compute_reference_logp, hooks=loop.hooks),
            about | self.networks.describe_computation(loop.device),
            like=torch.empty(0, dtype=precision, device=loop.device),
        )
        self.networks.reference = None

    def _add_old_scores(self, tensors: Tensors, loop: Loop) -> Tensors:
        """Add old log-probs, reference log-probs and critic values.

        Old log-probs are the sampler's unless the objective reads both.
        """
        if bool(tensors["is_action_BT"][:, :1].any()):
            raise ValueError(
                "the first token of a row is an action: it has no preceding token and cannot be scored"
            )
        if self.networks.head is not None:  # log-probs are not needed
            return tensors
        tensors = {**tensors, "old_logp_BT": tensors["sampler_logp_BT"]}
        if self.networks.routing.replay == "old":
            tensors["experts_BK"] = self.networks.choose_experts(tensors)
        is_unknown_BT = tensors["sampler_logp_BT"].isnan()  # data sets of texts record no log-probs
        is_any_unknown = bool(max_over_ranks(is_unknown_BT.any().float()))
        must_fill = is_any_unknown and needs_old_logps(self.objective, self.settings)
        if must_fill or self.objective.needs("sampler_logp_BT"):
            tensors["old_logp_BT"] = self.networks.compute_logp(tensors)
        if must_fill:
            filled_BT = torch.where(is_unknown_BT, tensors["old_logp_BT"], tensors["sampler_logp_BT"])
            tensors["sampler_logp_BT"] = filled_BT
        if self._cache is not None:
            tensors["ref_logp_BT"] = self._cache.look_up(tensors)
        elif self.networks.reference is not None:
            tensors["ref_logp_BT"] = self.networks.compute_reference_logp(tensors, loop.hooks)
        if (critic := self.networks.critic) is not None:
            columns = self.networks.compute_critic_columns(tensors)
            endings = ("value_BT", "implicit_q_BT")
            tensors |= columns | {
                f"old_{name}": x_BT for name, x_BT in columns.items() if name.endswith(endings)
            }
            if critic.slow is not None:
                tensors |= self.networks.compute_target_values(tensors)
        return tensors

    def _prepare(self, tensors: Tensors, logged: dict[str, float], *, at_least: int) -> Tensors | None:
        """Add the objective's columns and select its rows; return None if none is left."""
        prepared, metrics = prepare_rows(self.objective, tensors, at_least=at_least)
        logged |= {f"train/{name}": value for name, value in metrics.items()}
        return prepared

    def _skip_if_too_few_units(self, tensors: Tensors, is_filtered: bool, loop: Loop) -> bool:
        """Skip an iteration whose filter left too few units; return whether it was skipped."""
        own_count = torch.tensor(len(torch.unique(tensors[self.units])), device=loop.device)
        count, minimum = int(sum_over_ranks(own_count)), self.settings.minibatches
        return self.progress.skip_if_empty(
            is_filtered and count < minimum,
            f"filter left too few {name_units(self.units)} for update.minibatches={minimum}",
            loop,
        )

    # ------------------------------------------------------------------ steps
    def _train(self, tensors: Tensors, loop: Loop, iteration: int, logged: dict[str, float]) -> None:
        if self.observe is not None:
            self.observe(tensors)
        critic = self.networks.critic
        for term in self.objective.terms():
            if term.is_before:
                logged |= self._update_term(term, tensors, {}, logged)
        if (gradients := self.settings.gradients) is not None and gradients.is_due(iteration):
            logged |= self._measure_gradients(tensors, gradients.buckets, loop)
        is_warming_up = critic is not None and iteration < critic.warmup_iterations
        totals: Tensors = {}
        steps, is_taken = 0, True
        for epoch in range(self.settings.epochs):
            generator = torch.Generator().manual_seed(
                seeds.make_key(self._seed, "minibatch", iteration, epoch)
            )
            tensors, parts = split_minibatches(
                tensors, count=self.settings.minibatches, units=self.units, generator=generator,
                deal=loop.hooks.deal,
            )  # fmt: skip
            for rows in parts:
                metrics, is_taken = self._stepper.step(
                    tensors, rows.to(loop.device), loop, is_first=not steps, is_warming_up=is_warming_up
                )
                totals = add_metrics(totals, metrics)
                if not is_taken:
                    break
                steps += 1
            if not is_taken:
                break
        if self.settings.stop is not None:
            logged["train/steps"] = float(steps)
        self.progress.require_finite_weights(loop)
        if critic is not None:
            logged["critic/explained_variance"] = compute_explained_variance(tensors)
            if "cost_return_BT" in tensors:
                logged["critic/cost_explained_variance"] = compute_explained_variance(tensors, "cost_")
        for term in self.objective.terms():
            if not term.is_before:
                logged |= self._update_term(term, tensors, totals, logged)
        self._log_steps(totals, steps, loop, logged)
        loop.step_schedules()

    def _measure_gradients(self, tensors: Tensors, buckets: int, loop: Loop) -> dict[str, float]:
        """Measure the std and the gradient norms of each bucket of groups."""
        names = ("return_B", "group_B", "trajectory_B")
        gathered, _ = gather_rows({name: tensors[name] for name in names}, tensors["trajectory_B"])
        group_G, bucket_G, std_K = assign_buckets(**gathered, buckets=buckets)
        is_of_group_BG = tensors["group_B"][:, None] == group_G
        bucket_B = torch.where(is_of_group_BG, bucket_G, -1).amax(1)
        rows, bucket_B = add_fillers(tensors, bucket_B.cpu(), len(std_K))
        norms: dict[str, float] = {}
        for number, std in enumerate(std_K.tolist()):
            row_index = torch.nonzero(bucket_B == number).squeeze(1).to(loop.device)
            task, regulariser = self._stepper.measure_gradients(rows, row_index, loop)
            norms |= {
                f"gradients/spread_{number + 1}": std, f"gradients/task_{number + 1}": float(task),
                f"gradients/regulariser_{number + 1}": float(regulariser),
            }  # fmt: skip
        return norms

    def _update_term(
        self, term: Term, tensors: Tensors, totals: Tensors, logged: dict[str, float]
    ) -> dict[str, float]:
        """Update a term with its measured value and return its metrics."""
        tensors = self.objective.measured(tensors)
        is_action_BT = tensors["is_action_BT"]
        if term.measured_by is None and term.is_before:
            measured = logged[f"train/{term.measure}"]
        elif term.measured_by is None:
            total, count = sum_over_ranks(totals[term.measure]).tolist()
            measured = total / max(count, 1.0)
        elif term.is_before:
            measured = mean_over_ranks(bind(term.measured_by, tensors), is_action_BT)
        else:
            updated = tensors | {"logp_BT": self.networks.compute_logp(tensors)}
            measured = logged[f"train/{term.measure}"] = mean_over_ranks(
                bind(term.measured_by, updated), is_action_BT
            )
        return term.update(measured, int(sum_over_ranks(is_action_BT.sum())))

    def _log_steps(self, totals: Tensors, steps: int, loop: Loop, logged: dict[str, float]) -> None:
        loss = float(sum_over_ranks(totals.pop("loss")[0]))
        for name, value in metric_values(_sum_metrics(totals)).items():
            is_critic = name.startswith("critic_")
            logged[f"critic/{name.removeprefix('critic_')}" if is_critic else f"train/{name}"] = value
        logged["train/loss"] = loss / steps
        logged["train/lr"] = float(loop.optimizers[0].param_groups[0]["lr"])


def _sum_metrics(totals: Tensors) -> Tensors:
    """Merge the metrics of all ranks."""
    return {
        name: max_over_ranks(value) if name.endswith("_max") else sum_over_ranks(value)
        for name, value in totals.items()
    }
