"""PocketWorld: every plan does its task, nothing less and nothing more does, and what is held out stays held out."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest

from lit_agentrl.actions import ToolCall, read_call
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.pocket.game import PocketWorld
from lit_agentrl.envs.pocket.phone import Phone, count_changes
from lit_agentrl.envs.pocket.plan import APIS, FINISH, Plan, apply_plan, call, judge, list_actions
from lit_agentrl.envs.pocket.scenarios import (
    EASY,
    HELD_OUT,
    KINDS,
    SCENARIOS,
    TASKS,
    Address,
    begin,
    list_addresses,
    split_of,
)
from lit_agentrl.envs.splits import SPLITS
from tests.conftest import thinned
from tests.envs.processes import printed_alike

TOOLS = PocketWorld().tools()


def less(before: Phone, plan: Plan, left_out: int) -> Phone:
    """The phone after all calls of a plan but one; a call that is refused does nothing."""
    after = before.copy()
    for place, (name, arguments) in enumerate(plan.calls):
        if place != left_out:
            call(after, name, arguments)
    return after


@pytest.mark.parametrize("scenarios", thinned([range(1), range(SCENARIOS)], one_in=2))
@pytest.mark.parametrize("kinds", [[*KINDS][start::3] for start in range(3)])
def test_plans_do_their_tasks_and_nothing_less_or_more_does(kinds: list[str], scenarios: range) -> None:
    for kind, scenario in itertools.product(kinds, scenarios):
        for task in range(TASKS):
            before, plan = begin(Address(kind, scenario, task))
            after, answer = apply_plan(before, plan), plan.answer or ""
            assert judge(before, after, plan, answer).success
            assert not judge(before, before, plan, "").success, "doing nothing"
            assert len(plan.calls) < PocketWorld().max_solution
            for place, (name, _) in enumerate(plan.calls):
                assert not name.startswith("_") and isinstance(
                    read_call(list_actions(plan)[place], TOOLS), ToolCall
                )
                short = less(before, plan, place)
                missing = bool(count_changes(short, after))
                assert judge(before, short, plan, answer).success is not missing, "one call less"
            for name, arguments in (
                ("messages_send", {"number": "555-0000", "text": "hello"}),
                ("notes_delete", {"id": before.get_rows("notes")[0]["id"]}),
                ("bank_transfer", {"to": "Nobody", "amount": 1, "memo": "x"}),
            ):
                more = after.copy()
                call(more, name, arguments)
                assert not judge(before, more, plan, answer).success, "one call more"
                assert judge(before, more, plan, answer).share == 0.0
            if plan.answer is not None:
                assert not judge(before, after, plan, f"{answer}0").success, "another answer"
                assert judge(before, after, plan, f" ${answer.upper()}. ").success


@pytest.mark.slow
def test_there_are_enough_scenarios_and_what_is_held_out_is_not_trained_on() -> None:
    every = [address for split in SPLITS for address in list_addresses(split, (1, 2, 3))]
    assert len({(each.kind, each.scenario) for each in every}) == len(every) / 3 == 360
    levels = Counter((split_of(kind), kind.level) for kind in KINDS.values())
    assert all(levels[split, level] >= 1 for split in SPLITS for level in (1, 2, 3))
    for kind in KINDS.values():
        used = {
            APIS[name].app for task in range(TASKS) for name, _ in begin(Address(kind.name, 0, task))[1].calls
        }
        assert used <= {*kind.apps, "bank"} and (split_of(kind) == "test" or not used & HELD_OUT)
        assert len(used) >= min(kind.level, 2)
    apps = {api.app for api in APIS.values()}
    assert apps == {"contacts", "messages", "calendar", "notes", "bank", "shop", "music", "files"}
    asked = {
        split: {begin(each)[1].asks for each in list_addresses(split, (1, 2, 3))}
        for split in ("train", "test")
    }
    assert not asked["train"] & asked["test"]


@pytest.mark.slow
def test_scenarios_of_level_0_are_held_out_and_are_short() -> None:
    tasks = {split: list_addresses(split, (0,)) for split in SPLITS}
    scenarios = {split: {(each.kind, each.scenario) for each in tasks[split]} for split in SPLITS}
    assert {kind for kind, _ in scenarios["train"]} == {kind for kind, _ in scenarios["test"]} == {*EASY}
    assert sum(map(len, scenarios.values())) == len(set().union(*scenarios.values())) == 600 * len(EASY)
    assert len(tasks["test"]) >= 512 and min(scenario for _, scenario in scenarios["train"]) > SCENARIOS
    longest = PocketWorld(levels=[0]).max_solution
    assert max(len(list_actions(begin(each)[1])) for each in tasks["test"]) == longest == 5
    assert list_addresses("train", (0, 1))[: len(list_addresses("train", (1,)))] == list_addresses(
        "train", (1,)
    )


def test_a_task_by_hand() -> None:
    env = PocketWorld(levels=[2], partial=True)
    told, info = env.reset(seed=0)
    assert info["instance_id"] == "pocket/tell/0_0" and told.startswith("The user asks: Send ")

    def play(name: str, **arguments: Any) -> tuple[Any, ...]:
        return env.step(json.dumps({"name": name, "arguments": arguments}))

    plan = env._plan
    (_, seek), (_, send) = plan.calls
    saved = env.state_dict()
    for bad in (
        "hello",
        '{"name": "contacts_search", "arguments": {}}',
        '{"name": "call_police", "arguments": {}}',
    ):
        assert env.step(bad)[4]["action_is_valid"] is False and env.state_dict() == saved
    [row] = json.loads(play("contacts_search", **seek)[0])
    assert row["number"] == send["number"] and env.optimal_actions(horizon=9) == list_actions(plan)[1:]
    assert json.loads(play("notes_read", id="n99")[0]) == {"error": "there is no n99 among the notes"}
    assert env.optimal_actions(horizon=9) is None, "best play is the plan alone"
    state = json.loads(json.dumps(env.state_dict()))
    play("messages_send", **send)
    assert play(FINISH)[1:3] == (1.0, True)
    env.load_state_dict(state)
    play("messages_send", **send)
    play("messages_delete", id="m1")
    told, points, over, _, info = play(FINISH, answer="I did it.")
    assert (told, points, over, info["success"]) == ("The task is not solved.", 0.0, True, False)


def test_money_pages_and_refusals() -> None:
    phone, _ = begin(Address("buy", 0, 0))
    balance = phone.get_rows("account")[0]["balance"]
    before = phone.copy()
    for name, arguments in (
        ("bank_transfer", {"to": "Ada", "amount": balance + 1, "memo": "x"}),
        ("shop_buy", {}),
        ("music_put", {"playlist": "none", "song": "s1"}),
        ("music_create", {"name": "running"}),
        ("files_move", {"id": phone.get_rows("files")[0]["id"], "folder": "work"}),
        ("contacts_delete", {"id": "c99"}),
    ):
        assert "error" in json.loads(call(phone, name, arguments)) and not count_changes(before, phone), name
    pages = [json.loads(call(phone, "shop_search", {"query": "o", "page": page})) for page in (1, 2, 99)]
    assert len(pages[0]["rows"]) == 5 and pages[0]["pages"] > 1 and pages[2]["rows"] == []
    product = phone.get_rows("products")[0]
    call(phone, "shop_put", {"product": product["id"], "count": 3})
    order = json.loads(call(phone, "shop_buy", {}))
    assert order["total"] == 3 * product["price"]
    assert phone.get_rows("account")[0]["balance"] == balance - order["total"] and not phone.get_rows("cart")


def test_tasks_name_their_scenario_and_calls_are_counted() -> None:
    game = PocketWorld(split="test", levels=(1,))
    infos = [game.reset(seed=seed)[1] for seed in range(game.instances or 0)]
    tasks = Counter(info["scenario"] for info in infos)
    assert {*tasks.values()} == {3} == {info["scenario_tasks"] for info in infos}
    game.reset(seed=0)
    refused = str(ToolCall("contacts_delete", {"id": "nobody"}))
    assert game.step(refused)[4]["counts"] == {"failed_calls": 1, "give_ups": 0}
    assert game.step(str(ToolCall(FINISH, {})))[4]["counts"] == {"failed_calls": 0, "give_ups": 1}
    game.reset(seed=0)
    plan = game.optimal_actions(horizon=16) or []
    assert all(game.step(each)[4]["counts"] == {"failed_calls": 0, "give_ups": 0} for each in plan)


def test_the_contract() -> None:
    check_env(lambda split: PocketWorld(split=split, levels=(1,), partial=True), episodes=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"levels": [4]}, "levels="),
        ({"levels": []}, "levels="),
        ({"levels": "1"}, "levels="),
        ({"partial": 1}, "partial=1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        PocketWorld(**options)


@pytest.mark.slow
@pytest.mark.sweep
def test_phones_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.pocket.scenarios import list_addresses, begin\n"
        "for split in ('train', 'test'):\n"
        "    for address in list_addresses(split, (1, 2, 3))[::9]: print(begin(address))\n"
    )
    assert len(printed_alike(script)) > 100_000
