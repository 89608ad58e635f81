"""Detection of the first non-finite number: its module, function or gradient, and its time."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lit_agentrl.checks import NotFinite
from lit_agentrl.modules.contract import as_agent

# Functions whose names begin with these may return non-finite numbers on purpose: a constant, such as an infinite
# bound, or memory that is filled later.
_MAKE_CONSTANTS = ("full", "fill", "empty", "tensor", "where", "new_", "zeros", "set_")


class FirstNonFinite(Callback):
    """Callback that ends the run at the first NaN or infinity and names its place.

    It checks the output of each module of the policy and the critic, in every stage.  During an update it also checks
    what each torch function returns for finite inputs, each gradient in the backward pass, and each weight after an
    optimizer step.  A function may return ``-inf``, which masks contain.  The results of the run do not change, but the
    run takes about twice as long.

    Raises:
        NotFinite: the message names stage, iteration and place.
    """

    def __init__(self) -> None:
        self._stage = "rollout"  # a worker that plays ahead never leaves this stage
        self._iteration = self._version = 0
        self._run_hooks = ExitStack()  # hooks to remove when the trainer ends
        self._update_hooks = ExitStack()  # hooks to remove when an update ends
        self._names: dict[int, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cleanup handles, since modules are sent to workers with their hooks."""
        return self.__dict__ | {"_run_hooks": ExitStack(), "_update_hooks": ExitStack(), "_names": {}}

    # ------------------------------------------------------------------ stages
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Watch the outputs of modules."""
        self._run_hooks.close()
        for name, module in pl_module.named_modules():
            if name:
                handle = module.register_forward_hook(partial(self._check_output, name))
                self._run_hooks.callback(handle.remove)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch optimizer steps, and have autograd record where each function was called."""
        self._names = {id(weight): name for name, weight in pl_module.named_parameters()}
        for optimizer in trainer.optimizers:
            handle = optimizer.register_step_post_hook(self._check_weights)
            self._run_hooks.callback(handle.remove)
        before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        self._run_hooks.callback(torch.autograd.set_detect_anomaly, *before)
        # torch's warning repeats the place that this callback names
        self._run_hooks.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Error detected in")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_stage("rollout", trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Begin the update stage: the rollout callback runs first and has played the episodes."""
        self._begin_stage("update", trainer, pl_module)
        self._update_hooks.enter_context(_FunctionCheck(self))

    def on_train_batch_end(self, *_: Any) -> None:
        self._update_hooks.close()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_stage("validation", trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_stage("test", trainer, pl_module)

    def on_exception(self, *_: Any) -> None:
        self._remove_hooks()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._remove_hooks()

    def _begin_stage(self, stage: str, trainer: Trainer, pl_module: LightningModule) -> None:
        self._update_hooks.close()
        self._stage, self._iteration = stage, trainer.current_epoch + (stage in ("rollout", "update"))
        self._version = as_agent(pl_module).version

    def _remove_hooks(self) -> None:
        self._update_hooks.close()
        self._run_hooks.close()

    # ------------------------------------------------------------------ checks
    def _check_output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        for tensor in _iterate_tensors(output):
            if broken := _describe_nonfinite(tensor):
                weights = [
                    key
                    for key, weight in module.named_parameters(recurse=False)
                    if _describe_nonfinite(weight)
                ]
                is_input_broken = any(_describe_nonfinite(part) for part in _iterate_tensors(inputs))
                why = f"its {weights[0]} is not finite" if weights else (
                    "its input is not finite either" if is_input_broken else "input and weights are finite"
                )  # fmt: skip
                self.stop(f"in the output of {name} ({type(module).__name__}; {why})", broken)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Watch each gradient of this loss."""
        if broken := _describe_nonfinite(loss):
            self.stop("in the loss", broken)
        seen, open_nodes = set(), [loss.grad_fn]
        while open_nodes:
            node = open_nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            metadata: Any = node.metadata  # a dict, which torch declares as a method
            open_nodes += [following for following, _ in node.next_functions]
            if hasattr(node, "variable"):  # a leaf: the gradient of a weight
                node.register_prehook(
                    partial(self._check_gradient, self._names.get(id(node.variable), "a weight"))
                )
            else:
                node.register_hook(partial(self._check_function, node.name(), metadata))

    def _check_function(self, name: str, metadata: Mapping[str, Any], outputs: Any, inputs: Any) -> None:
        for tensor in _iterate_tensors(outputs):
            if broken := _describe_nonfinite(tensor):
                caller = _describe_origin(metadata.get("traceback_") or ())
                self.stop(f"in the gradient that {name}{caller} returns", broken)

    def _check_gradient(self, name: str, gradients: Any) -> None:
        for tensor in _iterate_tensors(gradients):
            if broken := _describe_nonfinite(tensor):
                self.stop(f"in the gradient of {name}", broken)

    def _check_weights(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if broken := _describe_nonfinite(weight):
                    self._version += 1  # only checkpoints from this step on are unusable
                    name = self._names.get(id(weight), "a weight")
                    self.stop(f"in {name} after a step of {type(optimizer).__name__}: lower optim.lr", broken)

    def stop(self, location: str, broken: str) -> NoReturn:
        """End the run.

        Raises:
            NotFinite: always.
        """
        raise NotFinite(
            f"{broken} first appears {location}, in the {self._stage} of iteration {self._iteration}",
            version=self._version,
        )


class _FunctionCheck(TorchFunctionMode):
    """Mode that checks what torch functions return for finite inputs."""

    def __init__(self, watch: FirstNonFinite) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if not isinstance(result, Tensor) or name.startswith(_MAKE_CONSTANTS) or "mask" in name:
            return result
        if (broken := _describe_nonfinite(result)) and not bool((result == -torch.inf).any()):
            inputs = list(_iterate_tensors((args, kwargs or {})))
            if inputs and not any(_describe_nonfinite(tensor) for tensor in inputs):
                self._watch.stop(f"in {name}{_describe_caller(inspect.currentframe())}", broken)
        return result


def _iterate_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _iterate_tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_tensors(item)


def _describe_nonfinite(tensor: Tensor) -> str:
    """Describe non-finite numbers, such as ``NaN (3 of 10 numbers)``; empty if all are finite."""
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.is_meta:
        return ""
    tensor = tensor.detach()
    count = int((~tensor.isfinite()).sum())
    kind = "NaN" if count and bool(tensor.isnan().any()) else "inf"
    return f"{kind} ({count} of {tensor.numel()} numbers)" if count else ""


def _describe_caller(frame: FrameType | None) -> str:
    """Describe the innermost calling frame outside of torch."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if _is_caller(path):
            return f", called by {frame.f_code.co_name} in {_shorten(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _describe_origin(lines: Any) -> str:
    """Describe where a gradient's function was called: the innermost recorded frame outside of torch."""
    for entry in reversed(list(lines)):
        head = str(entry).strip().splitlines()[0]  # File "…", line 3, in name
        path, _, rest = head.removeprefix('File "').partition('", line ')
        number, _, name = rest.partition(", in ")
        if rest and _is_caller(Path(path)):
            return f", called by {name} in {_shorten(Path(path))}:{number},"
    return ""


def _is_caller(path: Path) -> bool:
    return "torch" not in path.parts and path != Path(__file__)


def _shorten(path: Path) -> str:
    """Shorten a path: start at the package name, or keep the last three parts."""
    parts = path.parts
    if "lit_agentrl" in parts:
        return "/".join(parts[len(parts) - 1 - parts[::-1].index("lit_agentrl") :])
    return "/".join(parts[-3:])
