"""Hosts, which run the environments of a worker thread or refuse every call."""

from __future__ import annotations

from typing import Protocol

from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.rollout.worlds.environments import Answer, Call, Environments, describe_restart_limit, serve


class Host(Protocol):
    """An object that executes calls on environments, in its thread or in a process."""

    def __call__(self, call: Call) -> Answer | None: ...
    def forget(self, key: int) -> None: ...
    def interrupt(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ThreadHost:
    """A host of environments in the worker's thread."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def __call__(self, call: Call) -> Answer | None:
        if call.key not in self._environments.envs and call.kind != "reset":
            return None  # `forget` dropped this environment
        return serve(self._environments, call)

    def forget(self, key: int) -> None:
        self._environments = self._environments.without(key)

    def interrupt(self) -> None:
        """Interrupt what an environment waits for, if possible."""
        self._environments.interrupt()

    def abort(self) -> None:
        """Do nothing, because a thread cannot be stopped."""

    def close(self) -> None:
        self._environments.close()


class FailedHost:
    """A host whose every call fails, after too many restarts of its worker."""

    def __init__(self, hosting: Hosting) -> None:
        self._error = describe_restart_limit(hosting)

    def __call__(self, call: Call) -> Answer | None:
        return None if call.kind == "release" else Answer(error=self._error)

    def forget(self, key: int) -> None: ...  # this host holds no environment
    def interrupt(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
