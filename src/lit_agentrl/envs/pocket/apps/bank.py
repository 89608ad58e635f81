"""An account in whole dollars, with transfers and requests for money."""

from __future__ import annotations

from lit_agentrl.envs.pocket.phone import PAGE, TEXT, WHOLE, Phone, Refused, Row, get_page, make_api


def get_account(phone: Phone) -> Row:
    """Return the only row of the account."""
    return phone.get_rows("account")[0]


def pay(phone: Phone, to: str, amount: int, memo: str) -> Row:
    """Take money from the account.

    Raises:
        Refused: the balance is too low.
    """
    account = get_account(phone)
    if amount > account["balance"]:
        raise Refused(f"the balance of {account['balance']} is below {amount}")
    account["balance"] -= amount
    return phone.add("transfers", to=to, amount=amount, memo=memo)


def _list_transfers(phone: Phone, page: int = 1, to: str = "") -> Row:
    return get_page([row for row in phone.get_rows("transfers") if to.lower() in row["to"].lower()], page)


def _request(phone: Phone, of: str, amount: int, memo: str) -> Row:
    return phone.add("requests", by="me", of=of, amount=amount, memo=memo)


def _list_pending(phone: Phone) -> list[Row]:
    return [row for row in phone.get_rows("requests") if row["by"] != "me"]


def _pay_request(phone: Phone, id: str) -> Row:
    row = phone.get_row("requests", id)
    if row["by"] == "me":
        raise Refused(f"{id} is a request of your own")
    paid = pay(phone, row["by"], row["amount"], row["memo"])
    phone.remove("requests", id)
    return paid


APIS = (
    make_api("bank_balance", "Tells the balance in dollars.", get_account),
    make_api(
        "bank_history",
        "Lists transfers, oldest first, also of one receiver.",
        _list_transfers,
        {"page": PAGE, "to": TEXT},
    ),
    make_api("bank_transfer", "Sends money to a person.", pay, to=TEXT, amount=WHOLE, memo=TEXT),
    make_api("bank_request", "Asks a person for money.", _request, of=TEXT, amount=WHOLE, memo=TEXT),
    make_api("bank_pending", "Lists requests of others that wait for you.", _list_pending),
    make_api("bank_pay_request", "Pays a request of another person.", _pay_request, id=TEXT),
)
