"""The snippets of docs/client.md, run one after the other against a broker."""

import asyncio
import inspect
import re
from pathlib import Path

from ottla import client

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text()
# Without those that are marked, as they need something else.
BLOCKS = re.findall(r"(?<!-->\n)```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_snippet_runs(ottla_broker, capsys):
    printed = []
    for block in BLOCKS:
        names = {}
        exec(compile(block, "docs/client.md", "exec"), names)
        done = names["main"](ottla_broker.bootstrap)
        if inspect.isawaitable(done):
            asyncio.run(asyncio.wait_for(done, 60))
        printed.append(capsys.readouterr().out)

    producer, rows, transactions, consumer, sought, shared, admin, blocking, settings = printed
    assert producer == "0 0\n1\n"
    assert rows == "0 0 2\n"
    assert transactions.endswith("True False\n")
    assert consumer.startswith("0 0 b'ann' tea\n0 1 b'ann' milk\n0 2 None coffee\n")
    assert sought.startswith("100 ")
    assert shared == "1 tea\n1 milk\n1 coffee\n"
    assert "bills-0 0 0 0\n" in admin
    assert "no-such-topic" in admin
    assert blocking.startswith("[1, 2, 3, 4, 5, 6, 7, 8, 9]\n0 b'first'\n")
    assert "Produce 0 0." in settings


def test_every_method_of_the_admin_is_listed():
    verbs = {
        name
        for name, value in inspect.getmembers(client.Admin, inspect.isfunction)
        if not name.startswith("_") and name != "close"
    }

    assert verbs <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_error_is_listed():
    for name in client.__all__:
        if name.endswith("Error"):
            assert name in PAGE
