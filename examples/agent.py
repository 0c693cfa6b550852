"""An agent that survives SIGKILL: what its model said is recorded, and no tool that has acted acts again.

A model is asked over HTTP (the form is that of most providers' chat interface), and says which tool is to be used,
until it has an answer. `current_run.llm` records each reply whole, with its token counts, seconds and request id;
`current_run.tool` is a step, so what it does is done once. A worker that is killed anywhere in between goes on with
what the model has said, and does not pay for it twice.

Settings come from the environment: AGENT_DIR (the log, messages, results), BROKER, MODEL_URL, and TOOLS_FILE, in which
the tools write down what they did.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from celery import Celery

from celery_commander.tasks import Commander, current_run

HOME = Path(os.environ.get("AGENT_DIR", ".agent")).absolute()
MODEL_URL = os.environ.get("MODEL_URL", "http://127.0.0.1:8080/chat")
TURNS_MAX = 8

app = Celery("agent", broker=os.environ.get("BROKER", "memory://"), backend="cache+memory://")
Commander(app, state_directory=HOME / "state")


def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's reply as plain data."""
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request(MODEL_URL, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        reply: dict[str, Any] = json.load(response)
    return reply


def book_flight(to: str) -> str:
    """Act on the world; a booking system would be given `current_run.idempotency_key`."""
    with Path(os.environ.get("TOOLS_FILE", HOME / "tools")).open("a", encoding="utf-8") as file:
        file.write(f"{current_run.idempotency_key} flight to {to}\n")
    return f"flight to {to} booked"


TOOLS = {"book_flight": book_flight}


@app.task(durable=True)
def answer(question: str) -> dict[str, Any]:
    """Talk with the model until it has an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(TURNS_MAX):
        reply = current_run.llm(ask_model, messages)
        message = reply["message"]
        messages.append(message)
        if "tool" not in message:
            return {"answer": message["content"], "turns": len(messages)}
        done = current_run.tool(TOOLS[message["tool"]], *message["arguments"])
        messages.append({"role": "tool", "content": done})
    raise RuntimeError(f"no answer after {TURNS_MAX} turns")
