"""An account in whole dollars: transfers, and requests of others."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import PAGE, TEXT, WHOLE, Phone, Refused, Row, api, paged


def account(phone: Phone) -> Row:
    """The one row of the account."""
    return phone.rows("account")[0]


def pay(phone: Phone, to: str, amount: int, memo: str) -> Row:
    """Take money from the account.

    Raises:
        Refused: there is not enough.
    """
    mine = account(phone)
    if amount > mine["balance"]:
        raise Refused(f"the balance of {mine['balance']} is below {amount}")
    mine["balance"] -= amount
    return phone.add("transfers", to=to, amount=amount, memo=memo)


def _history(phone: Phone, page: int = 1, to: str = "") -> Row:
    return paged([row for row in phone.rows("transfers") if to.lower() in row["to"].lower()], page)


def _request(phone: Phone, of: str, amount: int, memo: str) -> Row:
    return phone.add("requests", by="me", of=of, amount=amount, memo=memo)


def _pending(phone: Phone) -> list[Row]:
    return [row for row in phone.rows("requests") if row["by"] != "me"]


def _pay_request(phone: Phone, id: str) -> Row:
    row = phone.row("requests", id)
    if row["by"] == "me":
        raise Refused(f"{id} is a request of your own")
    paid = pay(phone, row["by"], row["amount"], row["memo"])
    phone.remove("requests", id)
    return paid


APIS = (
    api("bank_balance", "Tells the balance in dollars.", account),
    api(
        "bank_history",
        "Lists transfers, oldest first, also of one receiver.",
        _history,
        {"page": PAGE, "to": TEXT},
    ),
    api("bank_transfer", "Sends money to a person.", pay, to=TEXT, amount=WHOLE, memo=TEXT),
    api("bank_request", "Asks a person for money.", _request, of=TEXT, amount=WHOLE, memo=TEXT),
    api("bank_pending", "Lists requests of others that wait for you.", _pending),
    api("bank_pay_request", "Pays a request of another person.", _pay_request, id=TEXT),
)
