"""Numbers of the run that turn at an alarm, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lit_agentrl.experimental.adapt import Adapt
from lit_agentrl.monitor.actions import Action
from lit_agentrl.rl.policy.entropy import AdaptiveBonus, Bonus
from tests.callbacks.test_actions import rollouts, trained


def test_numbers_turn_up_to_their_bounds_and_a_resumed_run_knows_them(toy_module: Any) -> None:
    def parts() -> tuple[Any, Bonus, Any, Adapt]:
        adapt = Adapt(filter={"factor": 0.5, "bound": 0.3}, entropy={"factor": 3.0, "bound": 0.002})
        bonus, played = Bonus(coef=0.001), rollouts(ratio=1.0)
        trainer: Any = SimpleNamespace(callbacks=[played], current_epoch=0)
        module = trained(toy_module, bonus)
        adapt.setup(trainer, module)
        return played, bonus, module, adapt

    played, bonus, module, adapt = parts()
    trainer: Any = SimpleNamespace(callbacks=[played])
    assert adapt.act(trainer, module) == "filter.ratio 1 -> 0.5, algo.entropy.coef 0.001 -> 0.002"
    assert adapt.act(trainer, module) == "filter.ratio 0.5 -> 0.3"
    assert adapt.act(trainer, module) == "" and adapt.metrics() == {"collapse/filter_ratio": 0.3}
    adapt.setup(trainer, module)  # of the test after training: what has been turned is no fault
    later, bonus, module, again = parts()
    again.load_state_dict(adapt.state_dict())
    again.start(trainer, module)
    assert bonus.coef == 0.002 and later.collector.select_groups.keywords == {"ratio": 0.3}


@pytest.mark.parametrize(
    ("make", "terms", "message"),
    [
        (lambda: Adapt(), (), "filter=null must be given, or else entropy or kl"),
        (lambda: Adapt(kl={"factor": 1.0, "bound": 1.0}), (), "kl.factor=1.0 must be a number > 0 other"),
        (
            lambda: Adapt(kl={"factor": 2.0, "bound": 0.1}),
            (),
            "action.kl={factor: 2.0, bound: 0.1} has no effect: algo.kl.coef is not an option of this run",
        ),
        (
            lambda: Adapt(entropy={"factor": 2.0, "bound": 0.1}),
            (AdaptiveBonus(target=0.2, delta=0.005, max_coef=0.05),),
            "algo.entropy.coef is not an option of this run, or changes by itself; choose algo/entropy=bonus",
        ),
        (
            lambda: Adapt(filter={"factor": 0.5, "bound": 0.5}),
            (),
            "action.filter.bound=0.5: filter.ratio=0.5 has already reached it; a factor of 0.5 needs a bound below it",
        ),
    ],
)
def test_an_action_that_cannot_act_is_refused_at_start(
    toy_module: Any, make: Callable[[], Action], terms: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trainer: Any = SimpleNamespace(
            callbacks=[rollouts(ratio=0.5)], strategy=SimpleNamespace(barrier=None), max_epochs=2
        )
        trainer.check_val_every_n_epoch = 2
        make().setup(trainer, trained(toy_module, *terms))
