"""Every page and action in a real browser: headless Chromium, driven by Playwright."""

import json
import os
import re
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from harness.chromium import needs_chromium, opened
from harness.console import Console
from ottla.client import ClientConfig, NewTopic, TimeoutConfig, TopicPartition
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.testing import RunningBroker

pytestmark = needs_chromium

AUDIT = (Path(__file__).parents[1] / "harness" / "accessibility.js").read_text()
SLOW = TimeoutConfig(request=60, operation=60)
TOKEN = "a-token-of-tests-0123"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e"
PATHS = (
    "/",
    "/brokers/0",
    "/topics",
    "/topics/orders",
    "/topics/orders/records",
    "/topics/orders/consumers",
    "/topics/orders/configs",
    "/groups",
    "/groups/billing",
    "/share-groups",
    "/groups/thumbnails",
    "/transactions",
    "/transactions/shown",
    "/acls",
    "/users",
    "/quotas",
    "/docs",
)


@pytest.fixture
def page(chromium, console):
    with opened(chromium, console) as one:
        yield one


@pytest.fixture(scope="module")
def furnished(console, broker):
    """The console of a cluster that has something for every page."""
    broker.create_topic("orders", partitions=3)
    for number in range(40):
        order = {"id": number, "user": {"name": "ann", "age": 30 + number}, "items": ["tea"]}
        headers = {"trace": b"%d" % number}
        broker.produce("orders", json.dumps(order), key=f"user-{number % 5}", headers=headers)
    broker.produce("orders", b"\x00\xff\xfe" * 20, key=b"\xff")
    reset = {"to": "start", "topics": ["orders"], "dry_run": False}
    console.api("POST", "/groups/billing/offsets", reset)
    with Admin(broker.bootstrap) as admin:
        admin.alter_share_group_offsets("thumbnails", {TopicPartition("orders", 0): 0})
    console.api("PUT", "/users/shown", {"password": "secret"}, status=204)
    quota = {"entity": {"client_id": "batch"}, "set": {"producer_byte_rate": 1e6}}
    console.api("PUT", "/quotas", quota, status=204)
    acl = {"resource_type": "TOPIC", "resource_name": "orders", "operation": "READ"}
    console.api("POST", "/acls", {**acl, "principal": "User:ann"}, status=201)
    with (
        Producer(broker.bootstrap, transactional_id="shown") as producer,
        producer.transaction(),
    ):
        producer.send("orders", b"in a transaction")
    return console


def test_pages_are_accessible_and_fit_narrow_screens(chromium, furnished):
    with opened(chromium, furnished) as page:
        for path in PATHS:
            page.set_viewport_size({"width": 360, "height": 640})
            response = page.goto(path)
            assert response.status == 200, path
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, f"{path} is {width} pixels wide"
            page.set_viewport_size({"width": 1280, "height": 720})
            for one in page.locator("main details").all()[:3]:
                one.evaluate("one => { one.open = true }")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate(AUDIT) == [], f"{path}, {scheme}"
                for dialog in page.locator("dialog").all():
                    dialog.evaluate("one => one.showModal()")
                    assert page.evaluate(AUDIT) == [], f"{path}, {scheme}: a dialog"
                    dialog.evaluate("one => one.close()")


def test_the_keyboard_is_enough(chromium, furnished):
    with opened(chromium, furnished) as page:
        page.goto("/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#keys").is_visible()
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_url("**/topics")
        page.keyboard.press("/")
        page.keyboard.type("order")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics?search=order*")
        names = focus_order(page)
        # In the order of the page, and everything that has the focus shows it.
        assert names.index("Topics") < names.index("Create topic") < names.index("orders")
        page.get_by_role("link", name="orders", exact=True).focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/orders")


def focus_order(page):
    page.evaluate("document.activeElement.blur()")
    names = []
    for _ in range(30):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "[document.activeElement.textContent.trim() || document.activeElement.id,"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        if page.evaluate("document.activeElement === document.body"):
            break
        assert outline != "none", name
        names.append(name)
    return names


def test_the_theme_is_kept(chromium, furnished):
    with opened(chromium, furnished, color_scheme="light") as page:
        page.goto("/")
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        page.get_by_label("Switch between light and dark").click()
        dark = page.evaluate(background)
        assert dark != light
        page.goto("/topics")
        assert page.evaluate(background) == dark


def test_the_life_of_a_topic(page, console):
    page.goto("/topics")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name", exact=True).fill("lively")
    page.get_by_label("Partitions").fill("2")
    page.get_by_label("Configs, one").fill("retention.ms=60000\ncleanup.policy=delete")
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_url("**/topics/lively")

    page.get_by_role("link", name="Configs").click()
    row = page.locator("tr", has_text="retention.ms").first
    assert "60000" in row.inner_text()
    row.get_by_role("button").click()
    page.get_by_label("Value").fill("soon")
    page.get_by_role("button", name="Save").click()
    page.locator("#edit-config .error").filter(has_text=re.compile("retention.ms")).wait_for()
    page.get_by_label("Value").fill("7200000")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    assert "7200000" in page.locator("tr", has_text="retention.ms").first.inner_text()
    page.locator("tr", has_text="retention.ms").first.get_by_role("button").click()
    page.get_by_label("Reset to the default").check()
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    assert "7200000" not in page.locator("tr", has_text="retention.ms").first.inner_text()

    page.get_by_role("link", name="Partitions", exact=True).click()
    page.get_by_role("button", name="Add partitions").click()
    with page.expect_navigation():
        page.get_by_role("button", name="Add", exact=True).click()
    assert console.api("GET", "/topics/lively")["partitions"] == 3
    records = {"records": [{"value": "v"}] * 5}
    console.api("POST", "/topics/lively/records", records, status=201)
    page.get_by_role("button", name="Delete all records").click()
    confirm(page, "lively", "Delete records")
    assert console.api("GET", "/topics/lively")["records"] == 0
    page.get_by_role("button", name="Delete topic").click()
    confirm(page, "lively", "Delete topic")
    page.wait_for_url("**/topics")
    console.api("GET", "/topics/lively", status=404)


def confirm(page, name, verb):
    """Type a name: a wrong one does nothing."""
    dialog = page.locator("dialog[open]")
    button = dialog.get_by_role("button", name=verb)
    field = dialog.get_by_label("to confirm")
    assert button.is_disabled()
    field.fill(f"{name}x")
    assert button.is_disabled()
    field.fill(name)
    with page.expect_navigation():
        button.click()


def test_lists_of_topics(page, console, furnished):
    for number in range(60):
        console.api("POST", "/topics", {"name": f"many-{number:03}", "partitions": 1}, status=201)
    page.goto("/topics")
    page.get_by_label("Search topics").fill("many-")
    page.get_by_role("button", name="Search").click()
    names = page.locator("tbody th a")
    assert names.count() == 50
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**page=2*")
    assert names.all_inner_texts() == [f"many-{number:03}" for number in range(50, 60)]
    page.goto("/topics?internal=true")
    page.get_by_role("link", name="Size").click()
    page.get_by_role("link", name="Size").click()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Size")
    assert "orders" in names.all_inner_texts()[:3]
    page.goto("/topics?unhealthy=true")
    assert page.get_by_text("No topic matches.").is_visible()


def test_the_message_browser(chromium, furnished):
    with opened(chromium, furnished) as page:
        page.goto("/topics/orders/records")
        assert page.locator("#records > tr").count() == 42
        page.get_by_label("Filter").fill("$.user.age >= 68")
        page.get_by_label("as", exact=True).select_option("json")
        page.get_by_role("button", name="Read").click()
        page.wait_for_url("**filter_kind=json*")
        assert page.locator("#records > tr").count() == 2
        page.locator("summary").first.click()
        assert '"age": 6' in page.locator("pre.bytes:visible").last.inner_text()
        page.goto("/topics/orders/records?filter=(&filter_kind=regex")
        assert "Invalid regular expression" in page.locator("p.error:visible").inner_text()
        page.goto("/topics/orders/records?start=start&limit=30")
        page.get_by_role("link", name="Next").click()
        page.wait_for_url("**cursor=*")
        assert page.locator("#records > tr").count() == 12
        page.goto("/topics/orders/records?limit=30")
        page.get_by_role("link", name="Older").click()
        page.wait_for_url("**cursor=*")
        assert page.locator("#records > tr").count() == 12
        page.get_by_role("link", name="Newest").click()
        page.goto("/topics/orders/records?limit=2")
        page.get_by_label("Show as").select_option("hex")
        page.wait_for_url("**view=hex*")
        page.locator("summary").first.click()
        assert "00000000  " in page.locator("pre.bytes:visible").last.inner_text()


def test_produce_and_live_tail(page, broker, topic):
    page.goto(f"/topics/{topic}/records")
    page.get_by_role("button", name="Produce").click()
    page.get_by_label("Key", exact=True).fill("ann")
    page.get_by_label("Value", exact=True).fill('{"a": 1}')
    page.get_by_label("Headers").fill("h=1")
    with page.expect_navigation():
        page.locator("dialog[open]").get_by_role("button", name="Produce").click()
    assert page.locator("#records > tr").count() == 1
    assert "1 header" in page.locator("#records").inner_text()

    page.get_by_role("button", name="Live tail").click()
    page.get_by_text("Waiting for new records").wait_for()
    broker.produce(topic, "first")
    page.locator("#records", has_text="first").wait_for()
    page.get_by_role("button", name="Pause").click()
    broker.produce(topic, "second")
    page.get_by_role("button", name="Resume (1)").wait_for()
    assert "second" not in page.locator("#records").inner_text()
    page.get_by_role("button", name="Resume (1)").click()
    page.locator("#records", has_text="second").wait_for()
    page.get_by_role("button", name="Stop tail").click()
    assert not page.locator("#pause").is_visible()


def test_a_hostile_record_does_nothing(page, broker, topic):
    broker.produce(topic, HOSTILE, key=HOSTILE, headers={HOSTILE: HOSTILE.encode()})
    broker.produce(topic, b"\xff\xfe" + HOSTILE.encode())
    broker.produce(topic, "<b>" * 340_000)
    page.goto(f"/topics/{topic}/records")
    for summary in page.locator("summary").all():
        summary.click()
    text = page.locator("#records").inner_text()
    assert "<script>alert(1)</script>" in text
    assert "\\x1b[31m\\u202e" in text
    assert "\x1b" not in text
    assert "The first 64.0 KiB of 996.1 KiB." in text

    page.get_by_role("button", name="Live tail").click()
    page.get_by_text("Waiting for new records").wait_for()
    broker.produce(topic, HOSTILE, key=HOSTILE, headers={HOSTILE: HOSTILE.encode()})
    page.locator("#records", has_text="alert(2)").first.wait_for()
    assert "\x1b" not in page.locator("#records").inner_text()
    assert page.locator("#records script, #records img").count() == 0
    page.goto(f"/topics/{topic}/records?filter=" + "%3Cscript%3Ealert(3)%3C/script%3E")
    assert page.locator("main script").count() == 0


def test_hostile_names_do_nothing(page, broker, console, topic):
    name = "\"'><img src=x onerror=alert(1)>{{7*7}}\x1b[31m"
    quoted = quote(name, safe="")
    reset = {"to": "start", "topics": [topic], "dry_run": False}
    console.api("POST", f"/groups/{quoted}/offsets", reset)
    console.api(
        "PUT", "/quotas", {"entity": {"user": name}, "set": {"request_percentage": 5}}, status=204
    )
    acl = {"resource_type": "GROUP", "resource_name": name, "operation": "READ", "host": name}
    console.api("POST", "/acls", {**acl, "principal": f"User:{name}"}, status=201)
    with Producer(broker.bootstrap, transactional_id=name) as producer, producer.transaction():
        producer.send(topic, b"v")
    client = ClientConfig(client_id=name)
    with Consumer(broker.bootstrap, topic, group="of hostile clients", client=client) as consumer:
        consumer.getmany(timeout=5)
        for path in (
            *("/groups", f"/groups/{quoted}", "/groups/of%20hostile%20clients", "/quotas", "/acls"),
            *("/transactions", f"/transactions/{quoted}", f"/topics/{topic}/consumers"),
            *(f"/groups?search={quoted}", f"/brokers/{quoted}", f"/topics/{quoted}"),
        ):
            page.goto(path)
            assert page.locator("main img").count() == 0, path
            text = page.locator("main").inner_text()
            assert "\x1b" not in text, path
            assert "onerror=alert(1)" in page.content(), path
    # What is shown is what has to be typed.
    page.goto(f"/groups/{quoted}")
    page.get_by_role("button", name="Delete group").click()
    confirm(page, name.replace("\x1b", "\\x1b"), "Delete group")
    console.api("GET", f"/groups/{quoted}", status=404)


def test_export_and_import(page, broker, console, topic, tmp_path):
    broker.produce(topic, "tea", "milk", key=b"\xff")
    other = broker.create_topic()
    page.goto(f"/topics/{topic}/records?start=start")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export JSON lines").click()
    file = tmp_path / "records.jsonl"
    download.value.save_as(file)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export CSV").click()
    assert download.value.suggested_filename == f"{topic}.csv"

    page.goto(f"/topics/{other}/records")
    page.get_by_role("button", name="Import").click()
    page.get_by_label("File").set_input_files(file)
    with page.expect_navigation():
        page.locator("dialog[open]").get_by_role("button", name="Import").click()
    assert page.locator("#records > tr").count() == 2
    items = console.api("GET", f"/topics/{other}/records")["items"]
    assert {one["key"]["encoding"] for one in items} == {"base64"}


def test_reset_and_delete_a_group(page, broker, console, topic):
    broker.produce(topic, "a", "b", partition=0)
    reset = {"to": "end", "topics": [topic], "dry_run": False}
    console.api("POST", "/groups/a%20%3Cb%3E%2Fc/offsets", reset)
    page.goto("/groups")
    page.get_by_role("link", name="a <b>/c").click()
    page.locator("figure output", has_text="0").wait_for()
    page.get_by_role("button", name="Reset offsets").click()
    button = page.locator("dialog[open]").get_by_role("button", name="Reset", exact=True)
    assert button.is_disabled()
    page.get_by_role("button", name="Dry run").click()
    page.locator(".plan td", has_text=f"{topic}-0").wait_for()
    assert console.api("GET", "/groups/a%20%3Cb%3E%2Fc/offsets")["lag"] == 0
    page.locator("dialog[open]").get_by_label("to confirm").fill("a <b>/c")
    with page.expect_navigation():
        button.click()
    assert console.api("GET", "/groups/a%20%3Cb%3E%2Fc/offsets")["lag"] == 2
    page.get_by_role("button", name="Delete group").click()
    confirm(page, "a <b>/c", "Delete group")
    console.api("GET", "/groups/a%20%3Cb%3E%2Fc", status=404)


def test_lag_rates_and_share_groups_are_live(page, broker, console, topic):
    broker.produce(topic, "a", "b", partition=0)
    reset = {"to": "start", "topics": [topic], "dry_run": False}
    console.api("POST", "/groups/lively/offsets", reset)
    page.goto("/groups?search=lively")
    row = page.locator("tr", has_text="lively")
    row.locator("[data-field=lag]", has_text="2").wait_for()
    page.goto("/groups/lively")
    lag = page.locator("tr", has_text=topic).first.locator("[data-field=lag]")
    assert lag.inner_text() == "2"
    broker.produce(topic, "c", partition=0)
    lag.filter(has_text="3").wait_for()
    page.locator("figure output", has_text="3").wait_for()
    assert page.locator("[data-total=lag]").inner_text() == "3"
    page.locator("tr", has_text=topic).first.locator(".spark .line[d]").wait_for()
    page.goto(f"/topics?search={topic}")
    rate = page.locator("[data-rate]")
    rate.filter(has_text="/s").wait_for()
    broker.produce(topic, *"0123456789", partition=1)
    page.locator("[data-records]", has_text="13").wait_for()
    rate.filter(has_text=re.compile("[1-9]")).wait_for()

    with Admin(broker.bootstrap) as admin:
        admin.alter_share_group_offsets("sharing", {TopicPartition(topic, 0): 0})
    while "sharing" not in page.content():  # a list may be two seconds old
        page.goto("/share-groups?search=sharing")
    page.get_by_role("link", name="sharing").click()
    page.get_by_role("button", name="Reset offsets").click()
    page.locator("dialog[open]").get_by_label("To", exact=True).select_option("end")
    page.get_by_role("button", name="Dry run").click()
    page.locator(".plan td", has_text=f"{topic}-0").wait_for()
    page.locator("dialog[open]").get_by_label("to confirm").fill("sharing")
    with page.expect_navigation():
        page.locator("dialog[open]").get_by_role("button", name="Reset", exact=True).click()
    assert console.api("GET", "/groups/sharing/offsets")["lag"] == 0
    page.get_by_role("button", name="Delete group").click()
    confirm(page, "sharing", "Delete group")
    page.wait_for_url("**/share-groups")


def test_configs_are_searched(page, furnished):
    page.goto("/topics/orders/configs")
    rows = page.locator("#configs tr:visible")
    page.get_by_label("Search configs").fill("retention.ms")
    assert "retention.ms" in rows.first.inner_text()
    assert rows.count() < 10
    page.get_by_label("Search configs").fill("")
    page.get_by_label("Overridden only").check()
    assert rows.count() < 10


def test_edit_a_config_of_a_broker(page, furnished):
    page.goto("/")
    page.get_by_role("link", name="0", exact=True).click()
    page.wait_for_url("**/brokers/0")
    page.get_by_label("Search configs").fill("log.segment.bytes")
    row = page.locator("#configs tr:visible").first
    row.get_by_role("button", name="Edit").click()
    page.get_by_label("Value").fill("2097152")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    row = page.locator("#configs tr", has_text="log.segment.bytes").first
    assert "2.0 MiB" in row.inner_text()
    row.get_by_role("button", name="Edit").click()
    page.get_by_label("Reset to the default").check()
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    row = page.locator("#configs tr", has_text="log.segment.bytes").first
    assert "2.0 MiB" not in row.inner_text()


def test_a_tombstone_and_bytes_are_produced(page, console, topic):
    for key, value, encoding in (("ann", None, "utf-8"), ("/w==", "AAE=", "base64")):
        page.goto(f"/topics/{topic}/records")
        page.get_by_role("button", name="Produce").click()
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_label("Key and value are").select_option(encoding)
        if value is None:
            page.get_by_label("a tombstone").check()
        else:
            page.get_by_label("Value", exact=True).fill(value)
        with page.expect_navigation():
            page.locator("dialog[open]").get_by_role("button", name="Produce").click()
    items = console.api("GET", f"/topics/{topic}/records")["items"]
    assert [one["value"] and one["value"]["size"] for one in items] == [None, 2]
    assert [one["key"]["encoding"] for one in items] == ["utf-8", "base64"]
    # A link to a record shows that one only.
    page.locator("summary").first.click()
    page.get_by_role("link", name="Link to this record").first.click()
    page.wait_for_url("**start=offset*")
    assert page.locator("#records > tr").count() == 1
    assert page.locator("#records details[open]").count() == 1


def test_acls_users_and_quotas(page, console):
    page.goto("/acls")
    page.get_by_role("button", name="Create ACL").click()
    page.get_by_label("Principal", exact=True).fill("User:<i>eve</i>")
    page.get_by_label("Resource name").fill("secret-")
    page.get_by_label("Pattern").select_option("PREFIXED")
    with page.expect_navigation():
        page.get_by_role("button", name="Create", exact=True).click()
    row = page.locator("tr", has_text="<i>eve</i>")
    row.get_by_role("button").click()
    confirm(page, "secret-", "Delete ACL")
    assert console.api("GET", "/acls?search=eve")["items"] == []

    page.goto("/users")
    page.get_by_role("button", name="Create user").click()
    page.get_by_label("User", exact=True).fill("eve/1")
    page.get_by_label("Password", exact=True).fill("secret")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    row = page.locator("tr", has_text="eve/1")
    row.get_by_role("button", name="Change password").click()
    page.get_by_label("Password", exact=True).fill("another secret")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    row.get_by_role("button", name="Delete").click()
    confirm(page, "eve/1", "Delete user")
    assert "eve/1" not in page.locator("main").inner_text()

    page.goto("/quotas")
    page.get_by_role("button", name="Set quotas").click()
    page.get_by_label("Client id").fill("app")
    page.get_by_label("consumer_byte_rate").fill("5000")
    page.get_by_label("request_percentage").fill("20")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    row = page.locator("tr", has_text="app")
    assert "consumer_byte_rate 4.9 KiB/s" in row.inner_text()
    row.get_by_role("button", name="Edit").click()
    page.get_by_label("consumer_byte_rate").fill("")
    page.get_by_label("request_percentage").fill("30")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    assert "consumer_byte_rate" not in row.inner_text()
    assert "request_percentage 30 %" in row.inner_text()
    row.get_by_role("button", name="Delete").click()
    confirm(page, "client-id app", "Delete quotas")
    assert row.count() == 0


def test_abort_a_transaction(page, broker, console, topic):
    with Producer(broker.bootstrap, transactional_id="stuck") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.detach()
    page.goto("/transactions?search=stuck")
    page.get_by_role("link", name="stuck").click()
    page.get_by_role("button", name="Abort and fence").click()
    confirm(page, "stuck", "Abort")
    assert console.api("GET", "/transactions/stuck")["state"] != "Ongoing"


def test_log_in_with_a_token(chromium, broker):
    with (
        Console(broker.bootstrap, "--token", TOKEN, "--read-only") as console,
        opened(chromium, console) as page,
    ):
        page.goto("/topics?search=a")
        page.wait_for_url(re.compile("/login.next="))
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        assert page.locator("p.error:visible").inner_text() == "Wrong token"
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/topics?search=a")
        assert page.get_by_text("read-only").is_visible()
        assert page.get_by_role("button", name="Create topic").count() == 0
        (cookie,) = page.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
        page.goto("/topics")
        page.wait_for_url(re.compile("/login.next="))
        # A login leads nowhere else.
        page.goto("/login?next=//evil.example/")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{console.address}/")


@pytest.mark.exhaustive
def test_ten_thousand_topics(chromium):
    names = [f"topic-{number:05}" for number in range(10_000)]
    # In memory, where that is possible: creating them takes a tenth of the time.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        RunningBroker(log_dir=folder) as broker,
        Console(broker.bootstrap) as console,
    ):
        with Admin(broker.bootstrap, client=ClientConfig(timeouts=SLOW)) as admin:
            for first in range(0, len(names), 2000):
                admin.create_topics(*(NewTopic(one, 1) for one in names[first : first + 2000]))
        with opened(chromium, console) as page:
            page.goto("/topics")
            assert page.locator(".count").inner_text() == "10\u2009000"
            page.keyboard.press("/")
            page.keyboard.type("-09999")
            page.keyboard.press("Enter")
            page.get_by_role("link", name="topic-09999", exact=True).wait_for()
            assert page.locator("tbody tr").count() == 1
            page.goto("/topics?sort=name&order=descending&page=200")
            assert page.locator("tbody th a").last.inner_text() == "topic-00000"
            page.goto("/")
            page.locator("figure output", has_text="B").first.wait_for()


def test_a_broker_goes_down_while_one_looks(chromium):
    broker = RunningBroker()
    with broker, Console(broker.bootstrap, "--timeout", "1") as console:
        broker.create_topic("orders")
        with opened(chromium, console) as page:
            page.goto("/topics/orders")
            page.locator("figure output", has_text="/s").wait_for()
            broker.stop()
            page.locator("figure output", has_text="not available").wait_for()
            began = time.monotonic()
            response = page.goto("/topics/orders")
            assert response.status in (503, 504)
            assert time.monotonic() - began < 10
            assert broker.bootstrap in page.locator("p.error:visible").inner_text()
            assert page.evaluate(AUDIT) == []
            broker.start()
            assert page.goto("/topics/orders").status == 200
