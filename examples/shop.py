"""A shop whose orders survive SIGKILL: the app of the demo, and the example to read first.

Every effect on the world stands in a step. What a step says of itself decides what happens to an
order whose worker was killed inside it:

- `quote` asks and changes nothing: it is simply run again.
- `charge` can be looked up at the bank: the bank is asked, and its answer is taken.
- `reserve` and `ship` can do neither: the order is aborted, and everything that it did, or may have
  done, is undone, the last step first.

Settings come from the environment: SHOP_DIR (books, messages, results, the log), BROKER (default:
files in SHOP_DIR), SEED and SHOP_PAUSE_SECONDS (how long a service takes at most).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict

from celery import Celery

from celery_commander.tasks import Commander, NotDone, Undo, current_run, step

from .services import CardDeclined, OutOfReach, Town

HOME = Path(os.environ.get("SHOP_DIR", ".shop")).absolute()
BROKER = os.environ.get("BROKER") or "filesystem://"
MESSAGES = HOME / "messages"


class Order(TypedDict):
    """One line of orders.csv."""

    id: str
    quantity: int
    cents: int
    card: str
    address: str


def transport_settings(broker: str) -> dict[str, Any]:
    """Return what Celery must know to use the broker: folders for files, a key prefix for Redis."""
    if not broker.startswith("filesystem"):
        return {"broker_transport_options": {"global_keyprefix": f"{HOME.name}:"}}
    MESSAGES.mkdir(parents=True, exist_ok=True)
    return {
        "broker_transport": "examples.broker:Transport",
        "broker_transport_options": {
            "data_folder_in": str(MESSAGES),
            "data_folder_out": str(MESSAGES),
            "control_folder": str(HOME / "control"),
            "polling_interval": 0.05,
        },
    }


HOME.mkdir(parents=True, exist_ok=True)
app = Celery("shop", broker=BROKER, backend=f"db+sqlite:///{HOME / 'results.sqlite'}")
app.conf.update(transport_settings(BROKER), worker_enable_remote_control=False)
Commander(app, state_directory=HOME / "commander_state", pending_after_seconds=2, sweep_seconds=1)
town = Town.open(
    HOME / "books",
    seed=os.environ.get("SEED", ""),
    pause_seconds=float(os.environ.get("SHOP_PAUSE_SECONDS", "0.03")),
)


@app.task
def unreserve(undo: Undo) -> None:
    town.stock.release_if_reserved(undo["step_key"], key=undo["key"])


@app.task
def refund(undo: Undo) -> None:
    town.bank.refund_if_charged(undo["step_key"], key=undo["key"])


@app.task
def recall(undo: Undo) -> None:
    town.carrier.recall_if_shipped(undo["step_key"], key=undo["key"])


def find_charge(key: str) -> object:
    """Ask the bank what became of a charge that was in doubt."""
    return town.bank.find_charge(key) or NotDone


@step(compensate=unreserve)
def reserve(order: Order) -> str:
    return town.stock.reserve(order["id"], order["quantity"], key=current_run.idempotency_key)


@step(retry_in_doubt=True)
def quote(order: Order) -> int:
    return town.carrier.quote(order["id"], order["quantity"])


@step(compensate=refund, not_done=(CardDeclined,), resolve=find_charge)
def charge(order: Order) -> str:
    key = current_run.idempotency_key
    return town.bank.charge(order["id"], order["cents"], order["card"], key=key)


@step(compensate=recall, not_done=(OutOfReach,))
def ship(order: Order, cents: int) -> str:
    key = current_run.idempotency_key
    return town.carrier.ship(order["id"], order["address"], cents, key=key)


@app.task(durable=True)
def fulfil(order: Order) -> dict[str, str]:
    """Take one order from the shelf to the door; a failure on the way takes all of it back."""
    slip = str(current_run.uuid4())  # recorded: the same in every replay
    shelf = reserve(order)
    price = quote(order)
    receipt = charge(order)
    return {"slip": slip, "shelf": shelf, "receipt": receipt, "parcel": ship(order, price)}
