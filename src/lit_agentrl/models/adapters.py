"""Checkpoints of a policy with adapters: trained weights, and the base they need."""

from __future__ import annotations

from typing import Any

from torch import nn

State = dict[str, Any]


def _list_frozen(module: nn.Module) -> set[str]:
    named = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def remove_base(state: State, module: nn.Module) -> State:
    """Return ``state`` without the parameters of ``module`` that are never trained."""
    frozen = _list_frozen(module)
    return {name: value for name, value in state.items() if name not in frozen}


def add_base(state: State, module: nn.Module) -> State:
    """Return ``state`` with the current values of the parameters that are never trained."""
    current = module.state_dict()
    return {**{name: current[name] for name in _list_frozen(module)}, **state}


def check_base(saved: State | None, current: State | None) -> None:
    """Refuse a checkpoint of other adapters, or of adapters on other weights.

    Args:
        saved: ``Policy.adapters`` as recorded in the checkpoint; None if it holds whole weights.
        current: ``Policy.adapters`` of the policy to load into.

    Raises:
        ValueError: If the two differ; the message names the difference and the remedy.
    """
    if saved == current:
        return
    if saved is None or current is None:
        content = "whole weights" if saved is None else "only adapters"
        remedy = (
            "model/lora=none" if saved is None else "model/lora=default, and the options they were made with"
        )
        raise ValueError(f"this checkpoint holds {content}; load it with {remedy}")
    if saved["fingerprint"] != current["fingerprint"]:
        raise ValueError(
            f"this checkpoint holds adapters of {saved['base']} with weights {saved['fingerprint'][:12]}; those of "
            f"model.name={current['base']} are {current['fingerprint'][:12]}: give the base that they were trained on"
        )
    # equal weights under another name are the same base
    compared = [name for name in {**current, **saved} if name != "base"]
    name = next((name for name in compared if saved.get(name) != current.get(name)), None)
    if name is not None:
        raise ValueError(
            f"model.lora: this checkpoint's {name} is {saved.get(name)}, here it is {current.get(name)}; use the former"
        )
