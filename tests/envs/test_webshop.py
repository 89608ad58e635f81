"""WebShop: the reward is that of the paper, pages can be clicked through, and files of the original are read."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.envs.webshop.catalogue import Product, load
from lit_agentrl.envs.webshop.game import WebShop
from lit_agentrl.envs.webshop.goals import compute_reward, draw_goal, has_goals
from lit_agentrl.envs.webshop.invented import invent
from lit_agentrl.envs.webshop.pages import Page, View
from lit_agentrl.envs.webshop.search import HITS, Search, Shop
from lit_agentrl.envs.webshop.stock import OPTIONS
from lit_agentrl.envs.webshop.words import are_similar, compute_similarity, extract_colour, find_content_words
from tests.conftest import thinned
from tests.envs.processes import printed_alike
from tests.envs.webshop_reward import reward, token_set_ratio
from tests.envs.webshop_rules import play_by_rules

REAL = os.environ.get("LIT_AGENTRL_WEBSHOP", "")
needs_real = pytest.mark.skipif(not REAL, reason="LIT_AGENTRL_WEBSHOP names no folder of WebShop's files")


def row_of(product: Product) -> dict[str, Any]:
    """A product as a row of the original's file."""
    options = {name.title(): [{"value": each} for each in values] for name, values in product.options.items()}
    return {
        "asin": product.id,
        "name": product.title,
        "category": product.category,
        "query": product.query,
        "product_category": " › ".join(product.path),
        "pricing": " - ".join(f"${price}" for price in product.prices),
        "full_description": product.description,
        "small_description": list(product.bullets),
        "customization_options": {**options, "Nothing": None},
        "images": [""],
    }


def write(folder: Path, products: list[Product]) -> str:
    """Files of the original's kind, one of them packed."""
    known = {
        each.id: {
            "attributes": each.attributes,
            "instruction": each.instruction,
            "instruction_attributes": each.wanted,
        }
        for each in products
    }
    wishes = {
        each.id: [{
            "asin": each.id, "instruction": f"i would like {each.query}.", "instruction_attributes": each.wanted[:1],
            "instruction_options": [values[-1].title() for values in each.options.values()][:1],
        }]
        for each in products[::2]
    }  # fmt: skip
    with gzip.open(folder / "items_shuffle_30.json.gz", "wt", encoding="utf-8") as file:
        json.dump([row_of(each) for each in [*products, products[0]]], file)
    (folder / "items_ins_v2.json").write_text(json.dumps(known), encoding="utf-8")
    (folder / "items_human_ins.json").write_text(json.dumps(wishes), encoding="utf-8")
    return str(folder)


def compare(products: tuple[Product, ...], kind: Any, goals: int, purchases: int) -> list[float]:
    """The worth of purchases, which both ways of computing it agree on."""
    rng, found = np.random.default_rng(5), []
    able = [product for product in products if has_goals(product, kind)]
    rows = {product.id: row_of(product) for product in products}
    for _ in range(goals):
        wanted = able[rng.integers(len(able))]
        goal = draw_goal(wanted, kind, rng)
        near = [product for product in products if product.query == wanted.query]
        for number in range(purchases):
            shelf = ([wanted], near, products)[number % 3]
            bought = shelf[int(rng.integers(len(shelf)))]
            chosen = [str(rng.choice(values)) for values in bought.options.values() if rng.random() < 0.8]
            if number == 0:
                chosen = list(goal.options)
            saved = json.loads(goal.json)
            row, price = rows[bought.id], bought.price
            expected = reward(
                saved, rows[wanted.id], row, price, chosen, list(bought.attributes), find_content_words
            )
            found.append(compute_reward(goal, wanted, bought, chosen))
            assert found[-1] == pytest.approx(expected, abs=1e-12)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("goals", thinned([80, 500], one_in=2))
def test_the_reward_is_that_of_another_writing_of_it(goals: int) -> None:
    found = compare(invent(400), "synthetic", goals, 20)
    assert len(found) == goals * 20 and len(set(found)) > 12 and min(found) == 0.0
    assert found[::20] == [1.0] * goals, "the product itself with the options that are wanted is worth 1"


@needs_real
@pytest.mark.slow
def test_real_files_are_read_and_their_reward_is_the_same() -> None:
    products = load(REAL)
    assert len(products) == 1000 and sum(has_goals(each, "synthetic") for each in products) > 400
    found = compare(products, "synthetic", 500, 20)
    assert found[::20] == [1.0] * 500 and 0.1 in {round(each, 6) for each in found}
    compare(products, "human", 50, 20)
    shop, able = Shop(products), [each for each in products if has_goals(each, "synthetic")]
    goals = [draw_goal(each, "synthetic", np.random.default_rng(number)) for number, each in enumerate(able)]
    assert np.mean([shop.numbers[goal.product] in shop.find(goal.text) for goal in goals]) > 0.95
    for split in SPLITS:
        assert played(WebShop(path=REAL, split=split), "best", 100)[1] == 1.0
    check_env(lambda split: WebShop(path=REAL, split=split))


def test_two_texts_are_as_alike_as_thefuzz_says() -> None:
    known = {  # of thefuzz 0.22
        ("easy carry", "easy to carry"): 100, ("rose gold", "gold rose"): 100, ("x-large", "large"): 100,
        ("tea tree", "tree teas"): 94, ("12 ounce", "16 ounce"): 88, ("", "a"): 0, ("é", "a"): 0, ("é", "é"): 0,
        ("10 x 12", "12x10"): 50, ("İstanbul", "istanbul"): 100, ("a_b", "a b"): 100,
    }  # fmt: skip
    for (first, second), expected in known.items():
        assert compute_similarity(first, second) == expected, (first, second)
    words = [
        "red shirt",
        "shirts red",
        "reed",
        "blue denim shirt",
        "x",
        "xx large",
        "long sleeve",
        "sleeveless",
    ]
    for first, second in itertools.product(words, words):
        assert compute_similarity(first, second) == token_set_ratio(first, second)
    assert (extract_colour("light navy"), extract_colour("plaid")) == ("light", "plaid")


def test_no_two_options_of_invented_products_count_as_one() -> None:
    for values in OPTIONS.values():
        for first, second in itertools.combinations(values.split(", "), 2):
            assert not are_similar(extract_colour(first), extract_colour(second))


def test_a_purchase_by_hand() -> None:
    env = WebShop(results=3)
    told, _ = env.reset(seed=3)
    assert told.endswith("\nSearch the shop: search[words]")
    goal, product = env._goal, env._shop.products[env._target]
    assert env.step("click[buy now]")[4]["action_is_valid"] is False
    told, *_ = env.step(f"  Search[{product.title.upper()}] ")
    assert "\nResults 1 to 3 of 50\n" in told and told.endswith("[back to search] [next >]")
    assert env.step("search[again]")[4]["action_is_valid"] is False
    second, *_ = env.step("click[next >]")
    assert "Results 4 to 6" in second and env.step("click[< prev]")[0] == told
    told, *_ = env.step(f"click[{product.id}]")
    assert f"{product.title}\nprice: {product.price_tag}\n" in told and "chosen: none" in told
    told, *_ = env.step("click[Features]")
    assert all(trait in told.lower() for trait in product.attributes) and "[buy now]" not in told
    env.step("click[< prev]")
    for value in goal.options:
        told, *_ = env.step(f"click[{value}]")
        assert f"chosen: {value}" in told
    for text in ("buy now", "click[]", "click[nothing]", "click[buy now", "search[red]"):
        _, points, over, _, info = env.step(text)
        assert not info["action_is_valid"] and (points, over) == (0.0, False)
    told, points, over, _, info = env.step("click[BUY NOW]")
    assert (points, over, info["success"], info["reward_parts"]) == (1.0, True, True, {"purchase": 1.0})
    assert told.endswith("Thank you for your purchase.") and env.optimal_actions(horizon=9) is None


def test_options_that_share_a_value_have_buttons_of_their_own() -> None:
    product = replace(invent(30)[0], options={"width": ("10", "buy now"), "length": ("10", "12")})
    view = View(Page(words="x", product=0), (0,), 10, (product,))
    buttons = [button for _, _, button in view.list_options()]
    assert buttons == ["width: 10", "width: buy now", "length: 10", "12"]
    assert {*buttons} <= {*view.find_targets()} and view.find_targets()["length: 10"].chosen == {
        "length": "10"
    }


def played(env: WebShop, who: str, episodes: int) -> tuple[float, float]:
    """Mean worth and share of purchases worth 1."""
    rng, found = np.random.default_rng(0), []
    for seed in range(episodes):
        told, _ = env.reset(seed=seed)
        points, info = 0.0, {"success": False}
        for left in range(15, 0, -1):
            if who == "best":
                [action, *_] = env.optimal_actions(horizon=left) or [""]
            else:
                action = play_by_rules(told) if who == "rules" else env.random_action(rng)
            told, points, over, _, info = env.step(action)
            assert info["action_is_valid"], action
            if over:
                break
        found.append((points, info["success"]))
    rewards, solved = np.mean(found, axis=0).tolist()
    return rewards, solved


@pytest.mark.slow
def test_shoppers_stand_in_the_order_of_what_they_know() -> None:
    found = {who: played(WebShop(split="test"), who, 200) for who in ("best", "rules", "chance")}
    assert found["best"] == (1.0, 1.0)
    assert 0.9 < found["rules"][0] < 0.98 and 0.6 < found["rules"][1] < 0.9
    assert found["chance"][0] < 0.2 and found["chance"][1] < 0.03


@pytest.mark.slow
def test_a_shopper_by_rules_and_files_of_the_original(tmp_path: Path) -> None:
    products = list(invent(60))
    path = write(tmp_path, products)
    for read, product in zip(load(path), products, strict=True):
        assert replace(read, wishes=()) == product and read.price == product.price
        assert product.prices[0] <= read.price <= product.prices[-1]
    for kind in ("synthetic", "human"):
        ids: dict[str, str] = {}
        for split in SPLITS:
            env = WebShop(path=path, goals=kind, split=split)  # type: ignore[arg-type]
            assert played(env, "best", 10) == (1.0, 1.0) and played(env, "rules", 10)[0] > 0.2
            for seed in range(40):
                env.reset(seed=seed)
                assert ids.setdefault(env._goal.product, split) == split
        check_env(lambda split, kind=kind: WebShop(path=path, goals=kind, split=split), episodes=3)
    same = WebShop.identity({"path": path, "results": 9})
    (tmp_path / "moved").mkdir()
    assert WebShop.identity({"path": write(tmp_path / "moved", products), "results": 9}) == same
    assert WebShop.identity({"path": write(tmp_path / "moved", products[:40]), "results": 9}) != same
    assert WebShop.home({"path": path}).parent == tmp_path


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("items_ins_v2.json", None, "one file items_ins_v2.* is needed, and it has none"),
        ("items_shuffle_9.json", "[]", "it has items_shuffle_30.json.gz, items_shuffle_9.json; keep one"),
        ("items_ins_v2.json", "{", r"path=.*items_ins_v2.json cannot be read as JSON \("),
        ("items_ins_v2.json", "[]", "must be a file with one entry for each product id"),
        ("items_shuffle_30.json.gz", "no gzip", "cannot be read as JSON"),
        (
            "items_ins_v2.json",
            '{"B0": []}',
            "goals=synthetic must be a kind that the split train has",
        ),
    ],
)
def test_damaged_files_are_told_in_one_line(tmp_path: Path, file: str, text: str | None, said: str) -> None:
    path = write(tmp_path, list(invent(30)))
    (tmp_path / file).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said) as told:
        WebShop(path=path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "search", ["fts5", pytest.param("bm25s", marks=[pytest.mark.slow, pytest.mark.sweep])]
)
def test_a_search_finds_the_product_that_a_goal_is_made_of(search: Search) -> None:
    if search == "bm25s":
        pytest.importorskip("bm25s")
    products = invent(400)
    shop, other, found = Shop(products, search), Shop(products, search), []
    able = [product for product in products if has_goals(product, "synthetic")]
    for number, product in enumerate(able[::20]):
        goal = draw_goal(product, "synthetic", np.random.default_rng(number))
        hits = shop.find(goal.text)
        assert len(hits) == len(set(hits)) <= HITS and hits == other.find(goal.text)
        found.append(shop.numbers[product.id] in hits)
    assert np.mean(found) > 0.95
    assert shop.find("of the") == shop.find("zzzz") == shop.find('") OR (') == ()
    if search == "bm25s":
        env = WebShop(search=search, split="val")
        assert played(env, "best", 20)[1] == 1.0
        check_env(lambda split: WebShop(search=search, split=split), episodes=1)


def test_without_the_library_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ValueError, match=r"^search=bm25s needs bm25s and PyStemmer .*lit-agentrl\[search\]"):
        Shop(invent(30), "bm25s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"products": 3}, "products=3 must be a whole number from 30"),
        ({"goals": "human"}, "goals=human must be synthetic where path=null"),
        ({"goals": "own"}, "goals=own must be one of synthetic, human"),
        ({"results": 0}, "results=0 must be"),
        ({"path": "no/folder"}, "path=no/folder must be a folder"),
        ({"path": "https://a.b"}, "download the file"),
        ({"partial": 1}, "partial=1 must be true or false"),
        ({"search": "own"}, "search=own must be one of fts5, bm25s"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WebShop(**options)


@pytest.mark.slow
@pytest.mark.sweep
def test_shops_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.webshop.game import WebShop\n"
        "env = WebShop(split='val')\n"
        "for seed in range(50): print(env.reset(seed=seed), env.optimal_actions(horizon=9), env.step('search[red]'))\n"
    )
    assert len(printed_alike(script)) > 20_000
