"""The screenshots of docs/console.md, of a cluster at work.

pytest tests/console/test_screenshots.py --screenshots docs/images
"""

import json
import random
import threading
import time
from contextlib import ExitStack

import pytest

from harness.chromium import needs_chromium, opened
from harness.console import Console
from ottla.client import TopicPartition
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.testing import RunningBroker

pytestmark = needs_chromium

SECONDS = 90
TOPICS = {"orders": 6, "payments": 3, "clickstream": 12, "users": 3, "shipments": 6, "audit-log": 1}
PAGES = {
    "overview-light": "/",
    "messages-light": "/topics/orders/records",
    "group-dark": "/groups/fraud-detection",
}


def order(number, choices):
    user = {"id": choices.randint(1, 999), "name": choices.choice(["ann", "bob", "cleo"])}
    items = [{"sku": f"T-{choices.randint(1, 99)}", "quantity": choices.randint(1, 5)}]
    return {"id": number, "user": user, "items": items, "total": round(choices.random() * 200, 2)}


def produce(bootstrap, stop):
    choices = random.Random(1)
    number = 0
    with Producer(bootstrap) as producer:
        while not stop.wait(0.25):
            for _ in range(choices.randint(20, 60)):
                number += 1
                one = order(number, choices)
                key = b"user-%d" % one["user"]["id"]
                topic = choices.choices(list(TOPICS), [5, 3, 12, 1, 2, 1])[0]
                headers = {"source": b"web"}
                producer.enqueue(topic, json.dumps(one).encode(), key=key, headers=headers)


def consume(bootstrap, group, topics, records_per_second, stop):
    with Consumer(bootstrap, *topics, group=group) as consumer:
        while not stop.wait(0.5):
            consumer.getmany(timeout=1, max_records=max(1, records_per_second // 2))


def test_screenshots(chromium, request):
    folder = request.config.getoption("--screenshots")
    if folder is None:
        pytest.skip("--screenshots is not given")
    folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    with ExitStack() as stack:
        broker = stack.enter_context(RunningBroker())
        console = stack.enter_context(Console(broker.bootstrap))
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions=partitions)
        with Admin(broker.bootstrap) as admin:
            admin.alter_share_group_offsets("thumbnails", {TopicPartition("clickstream", 0): 0})
        threads = [threading.Thread(target=produce, args=(broker.bootstrap, stop))]
        for group, topics, rate in (
            ("billing", ["payments"], 500),
            ("order-service", ["orders"], 500),
            ("fraud-detection", ["orders", "payments"], 20),
        ):
            arguments = (broker.bootstrap, group, topics, rate, stop)
            threads.append(threading.Thread(target=consume, args=arguments))
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for path in ("/live/end-offsets", "/live/size", "/live/lag?group=fraud-detection"):
                console.request("GET", f"/api/v1{path}")
            time.sleep(2)
        for name, path in PAGES.items():
            scheme = name.rpartition("-")[2]
            with opened(chromium, console, color_scheme=scheme) as page:
                page.goto(path)
                for details in page.locator("#records details").all()[:1]:
                    details.evaluate("one => { one.open = true }")
                page.wait_for_timeout(7000)
                page.screenshot(path=folder / f"console-{name}.png")
