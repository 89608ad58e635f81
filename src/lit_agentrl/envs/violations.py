"""Broken rules of the contract, and a prober that calls a game and collects them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lit_agentrl.envs.world import World

Make = Callable[[str], World]
_MAX_LISTED = 20  # violations that a message lists
_SHOWN = 60  # characters of a value that a message quotes
_SHOWN_ERROR = 160  # characters of an exception that a message quotes
_REMEDY_OF_MAKE = (
    "write reset and step, and let __init__ take split= and hand it to super().__init__(split=split)"
)
_CHECKER_FILES = ("violations.py", "checker.py", "call_checks.py")  # their lines say nothing about a game
_STEP_RESULT = "(observation, reward, terminated, truncated, info)"


class Violation(NamedTuple):
    """A broken rule of the contract.

    Attributes:
        rule: name of the rule.
        message: the part of the game and the value that breaks it.
        remedy: what the author of the game should do.
    """

    rule: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class ContractError(ValueError):
    """The broken rules of the contract; ``rule`` names the first one."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations, self.rule = tuple(violations), violations[0].rule
        lines = [f"rule {each.rule!r} is broken: {each}" for each in violations[:_MAX_LISTED]]
        if len(violations) > 1:
            lines = [f"{len(violations)} rules of the contract are broken", *lines]
        super().__init__("\n".join(lines))


class Stop(Exception):
    """End of a check that cannot continue, after the violation was recorded."""


class Probe:
    """Prober that calls a game and records each broken rule once, with the first example.

    Args:
        make: creates an environment of the given split.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._by_rule: dict[tuple[str, str], Violation] = {}

    @property
    def violations(self) -> list[Violation]:
        """All violations, in the order in which they were found."""
        return list(self._by_rule.values())

    def expect(self, condition: bool, rule: str, message: str, remedy: str) -> bool:
        """Record a violation unless the condition holds; return the condition."""
        if not condition:
            self._by_rule.setdefault((rule, remedy), Violation(rule, " ".join(message.split()), remedy))
        return condition

    def stop(self, rule: str, message: str, remedy: str) -> NoReturn:
        """Record a violation and end the check.

        Raises:
            Stop: always.
        """
        self.expect(False, rule, message, remedy)
        raise Stop

    def make(self, split: str) -> World:
        """Create an environment.

        Raises:
            Stop: the creation fails, or its result is not a World.
        """
        env = self.call(f"make({split!r})", lambda: self._make(split), _REMEDY_OF_MAKE)
        if not isinstance(env, World):
            self.stop(
                "types", f"make({split!r}) gave {describe(env)}, not a World", "inherit World, or a TextEnv"
            )
        return env

    def call(self, name: str, function: Callable[[], Any], remedy: str = "") -> Any:
        """Call a function of the game.

        Args:
            name: name of the function in messages.
            function: function that is called without arguments.
            remedy: what the author of the game should do if it fails.

        Raises:
            Stop: the function raises an exception.
        """
        try:
            return function()
        except Stop:
            raise
        except Exception as error:
            self.stop(
                "exceptions",
                f"{name} raised {describe_error(error)}",
                remedy or f"mend {name.split('(')[0]} for this case",
            )

    def reset(self, env: World, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Start an episode with those of the arguments that the game takes.

        Raises:
            Stop: the reset fails, or its result has another form.
        """
        missing = list_missing(env)
        self.expect(
            not missing,
            "seeding",
            f"reset takes no {' and no '.join(missing)}, and so cannot repeat an episode",
            "write reset(self, *, seed=None, options=None), and draw everything from seed and options['noise_seed']",
        )
        arguments = {name: value for name, value in arguments.items() if name not in missing}
        words = ", ".join(f"{name}={value}" for name, value in arguments.items())
        result = self.call(f"reset({words})", lambda: env.reset(**arguments))
        if not isinstance(result, tuple) or len(result) != 2:
            self.stop("types", f"reset gave {describe(result)}", "return (observation, info)")
        observation, info = result
        is_text = self.expect(
            isinstance(observation, str),
            "types",
            f"the observation of reset is {describe(observation)}",
            "return a str: what the policy reads",
        )
        is_dict = self.expect(
            isinstance(info, dict),
            "types",
            f"the info of reset is {describe(info)}",
            "return a dict, {} if empty",
        )
        if not (is_text and is_dict):
            raise Stop
        return result

    def step(self, env: World, action: str) -> tuple[str, Any, Any, Any, dict[str, Any]]:
        """Play an action.

        Raises:
            Stop: the step fails, or its result has another form.
        """
        result = self.call(f"step({shorten(repr(action))})", lambda: env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            self.stop("types", f"step gave {describe(result)}", f"return {_STEP_RESULT}")
        is_text = self.expect(
            isinstance(result[0], str),
            "types",
            f"the observation of step is {describe(result[0])}",
            "return a str: what the policy reads, '' at the end",
        )
        is_dict = self.expect(
            isinstance(result[4], dict),
            "types",
            f"the info of step is {describe(result[4])}",
            "return a dict",
        )
        if not (is_text and is_dict):
            raise Stop
        return result


def describe(value: Any) -> str:
    """Describe a value of any type in one short line."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<its repr raises {type(error).__name__}>"
    text = shorten(" ".join(text.split()))
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}, {text}"
    return text if value is None else f"{type(value).__name__} {text}"


def shorten(text: str, limit: int = _SHOWN) -> str:
    """Cut a text to the length that messages show."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line, with the place where the game raised it."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    names = ((Path(frame.filename).name, frame.lineno) for frame in frames)
    game_places = [
        place for place in names if place[0] not in _CHECKER_FILES and not place[0].startswith("<")
    ]
    return shorten(text, _SHOWN_ERROR) + (
        f" ({game_places[-1][0]}:{game_places[-1][1]})" if game_places else ""
    )


def list_missing(env: World) -> list[str]:
    """List the arguments of the contract that the reset of a game does not take."""
    accepted = _list_parameters(env.reset)
    return [name for name in ("seed", "options") if accepted is not None and name not in accepted]


def _list_parameters(function: Callable[..., Any]) -> set[str] | None:
    """Return the names that a function takes by keyword; None: all, or unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
