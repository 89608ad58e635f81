"""The Ray cluster of a run: at an address, or on this machine alone."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from lit_agentrl.rollout.workers.opener import PlayingError
from lit_agentrl.rollout.workers.options import AUTO, split_address

_AUTH = "RAY_AUTH_MODE"
_ANSWER_S = 10.0  # seconds for a machine to answer
_HEAD_S = 30.0  # seconds for Ray to start and check


def require_answer(address: str) -> None:
    """Check that something listens at an address, because Ray takes minutes to find out.

    Raises:
        PlayingError: Nothing listens there.
    """
    try:
        socket.create_connection(split_address(address), _ANSWER_S).close()
    except OSError as error:
        raise PlayingError(
            f"worker=ray cannot reach worker.address={address} ({error}); start a cluster there (ray start --head "
            "--port=6379), and see `ray status` on its head"
        ) from error


def require_head(address: str) -> None:
    """Check in a separate process that an address belongs to the head of a cluster.

    Ray itself would keep trying for a long time, and would log.

    Args:
        address: ``HOST:PORT``, or ``auto`` for the cluster that Ray itself finds.

    Raises:
        PlayingError: Nothing listens there, or something other than a head, such as a proxy.
    """
    if address != AUTO:
        require_answer(address)
    address_option = [] if address == AUTO else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    environment = {**os.environ, "RAY_gcs_server_request_timeout_seconds": f"{_ANSWER_S / 2:g}"}
    try:
        status = subprocess.run(
            [*command, *address_option],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_HEAD_S,
            check=False,
        )
        reason = "" if status.returncode == 0 else (status.stderr.strip().splitlines() or ["no answer"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_HEAD_S:g} seconds"
    if reason and address == AUTO:
        raise PlayingError(
            f"worker=ray finds no cluster of Ray by worker.address=auto ({reason.split('. ')[0]}); start one here "
            "(ray start --head --port=6379), or name its address (HOST:6379)"
        )
    if reason:
        raise PlayingError(
            f"worker=ray: what listens at worker.address={address} is no head of a cluster of Ray ({reason}); start "
            "one there (ray start --head --port=6379), or name another address"
        )


def connect(ray: ModuleType, address: str | None, *, count: int | str, cpus: float, gpus: float) -> None:
    """Connect Ray to a cluster.

    Args:
        ray: The library.
        address: Address of the cluster; None starts one on this machine alone.
        count: Number of workers, or ``auto``.
        cpus: CPUs of each worker.
        gpus: GPUs of each worker.

    Raises:
        PlayingError: No cluster answers there, none can be started, or a worker does not fit into it.
    """
    if address is not None and address != AUTO:
        require_answer(address)
    options: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    if address is None and isinstance(count, int):
        options["num_cpus"] = max(1, math.ceil(count * cpus))  # Ray's default is the number of cores
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:  # Ray raises many kinds
        where = "a cluster on this machine" if address is None else address
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        # Ray sends a token to a given address only if configured to
        may_need_token = address not in (None, AUTO) and os.environ.get(_AUTH) is None
        hint = f"; where that cluster was started with a token, set {_AUTH}=token" if may_need_token else ""
        raise PlayingError(
            f"worker=ray cannot reach {where} ({type(error).__name__}: {line}); see worker.address, and "
            f"`ray status` on its head{hint}"
        ) from error
    if address is None:
        have = ray.cluster_resources()
        try:
            require_room(
                {"cpus": cpus, "gpus": gpus}, {"cpus": have.get("CPU", 0.0), "gpus": have.get("GPU", 0.0)}
            )
        except PlayingError:
            ray.shutdown()
            raise


def count_resources() -> dict[str, float]:
    """Return the CPUs and GPUs of this machine; Ray may be allowed fewer."""
    return {"cpus": os.cpu_count() or 1, "gpus": torch.cuda.device_count()}


def require_room(need: Mapping[str, float], have: Mapping[str, float]) -> None:
    """Refuse actors that need more than this machine has, for a cluster that cannot grow.

    Args:
        need: Resources of each actor, by option.
        have: Resources of the machine.

    Raises:
        PlayingError: An actor needs too much; the message names the option.
    """
    for option, wanted in need.items():
        if wanted > have[option]:
            raise PlayingError(
                f"worker.{option}={wanted:g} is more than this machine has ({have[option]:g}), so no worker could "
                f"begin; lower worker.{option}, or name a cluster with worker.address"
            )
