"""Certify algorithms by name, composed as a run composes them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import torch

from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.certificates.certificate import Certificate, certify
from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.overrides import parse
from lit_agentrl.paths import list_options

_LONGEST = 24  # characters of a name in a table


def list_jobs(overrides: Sequence[str]) -> list[list[str]]:
    """Return the options of each certificate: one for each ``algo=`` or shipped algorithm."""
    shared = [text for text in overrides if text != "all" and not text.startswith("algo=")]
    named = [text for text in overrides if text.startswith("algo=")]
    if "all" in overrides:
        named = [f"algo={file.stem}" for file in list_options("algo")]
    return [[name, *shared] for name in named] or [shared]


def certify_job(job: Sequence[str], search_overrides: Sequence[str] = (), *, members: int) -> Certificate:
    """Compose the objective that the options of a run name, and certify it.

    Raises:
        ValueError: an unknown option or an invalid value.
    """
    torch.set_num_threads(1)  # the matrices of table games are tiny
    objective, _ = build_algorithm(compose_job("train", list(job), list(search_overrides)))
    certificate = certify(objective, members=members)
    changed = [text for text, each in zip(job, parse(job), strict=True) if each.key_or_group != "algo"]
    name = " ".join([objective.name, *(text.removeprefix("algo/").removeprefix("algo.") for text in changed)])
    return replace(certificate, name=name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")


def certify_jobs(
    jobs: Sequence[Sequence[str]], search_overrides: Sequence[str] = (), *, members: int, processes: int
) -> Iterator[Certificate]:
    """Yield the certificate of each job, in order, from several processes."""
    make = partial(certify_job, search_overrides=search_overrides, members=members)
    if processes == 1 or len(jobs) == 1:
        yield from map(make, jobs)
        return
    # a forked process would share locks of torch's threads
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(make, jobs)
