"""Products, and the files of the original WebShop that hold them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_agentrl.checks import require, require_local
from lit_agentrl.envs.splits import keyed_rng, stable_hash

_PRICE = 71  # purpose key of the price within a range
_UNPRICED = 100.0  # dollars, for a product without a price
_LONGEST = 200_000_000  # bytes of one file, unpacked
# names of the files in the original; an ending such as _1000 may follow
_PRODUCTS, _ATTRIBUTES, _HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"


@dataclass(frozen=True)
class Wish:
    """An instruction that a person wrote for a product."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """A product of the shop.

    Attributes:
        id: ten characters, in upper case.
        prices: one price, or the ends of a range.
        price: the price to pay; within the range, the same in every process.
        options: group -> values, in lower case.
        attributes: known attributes, which the texts of the product contain but its page does not list.
        instruction, wanted: the text of a goal for it, and the attributes in that text; empty: there is no goal.
        wishes: instructions written by people.
    """

    id: str
    title: str
    category: str
    query: str
    path: tuple[str, ...]
    prices: tuple[float, ...]
    description: str
    bullets: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    instruction: str = ""
    wanted: tuple[str, ...] = ()
    wishes: tuple[Wish, ...] = ()
    price: float = field(init=False)

    def __post_init__(self) -> None:
        low, high = self.prices[0], self.prices[-1]
        share = float(keyed_rng(stable_hash(self.id), 0, _PRICE).random())
        object.__setattr__(self, "price", low if low == high else round(low + share * (high - low), 2))

    @property
    def price_tag(self) -> str:
        """The price as the shop shows it."""
        return " to ".join(f"${price:.2f}" for price in self.prices)


def find_files(folder: object) -> list[Path]:
    """Return the files of products, of attributes and, if it exists, of human instructions.

    Raises:
        ValueError: the folder or a file is missing, or a file exists twice.
    """
    require_local("path", folder)
    path = Path(str(folder)).expanduser()
    require(path.is_dir(), "path", folder, "a folder with the files of WebShop")
    paths = []
    for stem in (_PRODUCTS, _ATTRIBUTES, _HUMAN):
        files = sorted(file for end in (".json", ".json.gz") for file in path.glob(f"{stem}*{end}"))
        if len(files) > 1 or (not files and stem != _HUMAN):
            problem = f"has {', '.join(file.name for file in files)}; keep one" if files else "has none"
            raise ValueError(
                f"path={folder}: one file {stem}*.json or {stem}*.json.gz is needed, and it {problem}"
            )
        paths += files
    return paths


def hash_files(folder: object) -> str:
    """Return a hash of the content of the files."""
    digest = hashlib.blake2b(digest_size=16)
    for file in find_files(folder):
        digest.update(json.dumps(_read(file), sort_keys=True).encode())
    return digest.hexdigest()


def load(folder: object) -> tuple[Product, ...]:
    """Read the products of a folder, in the order of the file.

    Raises:
        ValueError: a file is missing or damaged, or has no product that can be bought.
    """
    files = find_files(folder)
    rows, attributes, *rest = (_read(file) for file in files)
    require(isinstance(rows, list), "path", files[0], "a file with a list of products")
    wishes = rest[0] if rest else {}
    for file, entries in zip(files[1:], (attributes, wishes), strict=False):
        require(isinstance(entries, dict), "path", file, "a file with one entry for each product id")
    products: dict[str, Product] = {}
    for index, row in enumerate(rows):
        try:
            id = str(row["asin"]).upper()
            if len(id) <= 10 and id != "NAN" and id not in products:
                products[id] = _parse_product(
                    id, row, attributes.get(row["asin"], {}), wishes.get(row["asin"], [])
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"path={files[0]}: product {index} cannot be read ({message})") from error
    require(bool(products), "path", files[0], "a file with at least one product")
    return tuple(products.values())


def _read(file: Path) -> Any:
    try:
        with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as opened:
            text = opened.read(_LONGEST + 1)
        require(len(text) <= _LONGEST, "path", file, f"a file of at most {_LONGEST // 10**6} MB")
        return json.loads(text)
    except (OSError, EOFError, RecursionError, ValueError) as error:
        if str(error).startswith("path="):
            raise
        raise ValueError(f"path={file} cannot be read as JSON ({' '.join(str(error).split())})") from error


def _parse_product(
    id: str, row: Mapping[str, Any], attributes: Mapping[str, Any], wishes: Iterable[Any]
) -> Product:
    bullets = row.get("small_description") or []
    return Product(
        id=id,
        title=str(row["name"]).strip(),
        category=str(row["category"]),
        query=str(row["query"]).lower().strip(),
        path=tuple(part.strip() for part in str(row["product_category"]).split("›")),
        prices=_parse_prices(str(row.get("pricing") or "")),
        description=str(row.get("full_description") or "").strip(),
        bullets=tuple(
            str(bullet).strip() for bullet in (bullets if isinstance(bullets, list) else [bullets])
        ),
        options=_parse_options(row.get("customization_options") or {}),
        attributes=tuple(map(str, attributes.get("attributes") or ())),
        instruction=str(attributes.get("instruction") or ""),
        wanted=tuple(map(str, attributes.get("instruction_attributes") or ())),
        wishes=tuple(
            Wish(
                str(wish["instruction"]),
                tuple(map(str, wish["instruction_attributes"])),
                tuple(str(value).lower() for value in wish["instruction_options"]),
            )
            for wish in wishes
            if wish["instruction_attributes"]
        ),
    )


def _parse_prices(text: str) -> tuple[float, ...]:
    numbers = [re.sub(r"[^\d.]", "", part) for part in text.split("$")[1:3]]
    return tuple(float(price) for price in numbers) or (_UNPRICED,)


def _parse_options(groups: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    options = {}
    for name, contents in groups.items():
        values = [str(content["value"]).strip().replace("/", " | ").lower() for content in contents or ()]
        if values := [value for value in dict.fromkeys(values) if value]:
            options[name.strip().lower()] = tuple(values)
    return options
