"""Products, a cart, and orders paid from the account."""

from __future__ import annotations

from lit_agentrl.envs.pocket.apps.bank import pay
from lit_agentrl.envs.pocket.phone import (
    PAGE,
    TEXT,
    WHOLE,
    Phone,
    Refused,
    Row,
    find_rows,
    get_page,
    make_api,
)


def _search(phone: Phone, query: str, page: int = 1) -> Row:
    return get_page(find_rows(phone.get_rows("products"), query, "name"), page)


def _put(phone: Phone, product: str, count: int) -> Row:
    return phone.add("cart", product=phone.get_row("products", product)["name"], count=count)


def _buy(phone: Phone) -> Row:
    rows = phone.get_rows("cart")
    if not rows:
        raise Refused("the cart is empty")
    prices = {row["name"]: row["price"] for row in phone.get_rows("products")}
    total = sum(prices[row["product"]] * row["count"] for row in rows)
    pay(phone, "shop", total, "order")
    bought = sorted(f"{row['count']} {row['product']}" for row in rows)
    rows.clear()
    return phone.add("orders", items=bought, total=total)


APIS = (
    make_api("shop_search", "Finds products by a part of the name.", _search, {"page": PAGE}, query=TEXT),
    make_api(
        "shop_put",
        "Puts a product into the cart.",
        _put,
        product={**TEXT, "description": "its id"},
        count=WHOLE,
    ),
    make_api("shop_cart", "Lists the cart.", lambda phone: phone.get_rows("cart")),
    make_api(
        "shop_take_out", "Takes a row out of the cart.", lambda phone, id: phone.remove("cart", id), id=TEXT
    ),
    make_api("shop_buy", "Buys what is in the cart, paid from the bank account.", _buy),
    make_api("shop_orders", "Lists orders.", lambda phone: phone.get_rows("orders")),
)
