"""Dashboards, alerts, and Prometheus itself, which scrapes three brokers under load."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from harness.brokers import a_broker
from harness.daemon import HOST, free_port
from harness.etcd import EtcdCluster, StoreCluster
from harness.metrics import fetch
from harness.requests import produce_code
from harness.waiting import wait_until
from ottla.broker.observability.collector import Collector
from ottla.client.blocking import Consumer, Producer

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARDS = sorted((MONITORING / "grafana" / "dashboards").glob("*.json"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
RULES = [
    rule
    for name in ("rules.yml", "alerts.yml")
    for group in yaml.safe_load((MONITORING / name).read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
#: What a healthy cluster without an authorizer and quotas has no samples of.
WITHOUT_SAMPLES = (
    "ottla_request_errors_total",
    "ottla_quota_throttle_seconds_total",
    "ottla_authorizer_denials_total",
)

each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def queries_of(path: Path) -> list[str]:
    """Return the queries of a dashboard's panels."""
    panels = json.loads(path.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def with_values(query: str, job: str = "ottla") -> str:
    """Return a query with values of the dashboard's variables."""
    query = query.replace("$__rate_interval", "1m").replace("$job", job)
    return re.sub(r"\$\w+", ".+", query)


ALL_QUERIES = [with_values(query) for path in DASHBOARDS for query in queries_of(path)]


def promtool(*arguments: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# The files.


def test_the_dashboards_are_those_of_their_script():
    script = MONITORING / "dashboards.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


@each_dashboard
def test_a_dashboard_defines_the_variables_that_it_uses(path):
    content = json.loads(path.read_text())
    defined = {variable["name"] for variable in content["templating"]["list"]}
    panels = content["panels"]

    used = set(re.findall(r"\$(\w+)", " ".join(queries_of(path)))) - {"__rate_interval"}
    assert used <= defined
    assert defined <= used | {"datasource"}
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    assert content["uid"] == f"ottla-{path.stem}"


def test_every_query_parses(tmp_path):
    rules = [
        {"record": f"query:{number}", "expr": query} for number, query in enumerate(ALL_QUERIES)
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))

    promtool("check", "rules", path)


async def test_queries_and_rules_name_metrics_that_exist(tmp_path):
    async with a_broker(tmp_path) as broker:
        # A cluster with replication has these, too; the next test shows their data.
        collector, exported = Collector(broker), set()
        families = [*collector.families(), *collector._replication()]
        source = (ROOT / "broker" / "observability").glob("*.py")
        text = "".join(path.read_text() for path in source)
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        suffixes = ("_bucket", "_count", "_sum") if family.type == "histogram" else ("",)
        exported |= {f"{name}{suffix}" for suffix in suffixes}
    replicated = set(re.findall(r'"(ottla_\w+)"', text))
    known = exported | replicated | {f"{name}_total" for name in replicated} | RECORDED | {"up"}

    used = {
        name
        for query in [*ALL_QUERIES, *(rule["expr"] for rule in RULES)]
        for name in re.findall(r"\b(?:ottla|process)[\w:]+(?=[{)\[ ]|$)", query)
    }
    assert len(used) > 40
    assert used <= known, used - known


def test_the_rules_are_valid_and_every_alert_has_a_test():
    promtool("check", "rules", MONITORING / "rules.yml", MONITORING / "alerts.yml")
    promtool("test", "rules", MONITORING / "alerts_test.yml")
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    raised = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }

    assert raised == {alert["alert"] for alert in ALERTS}
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert set(alert["annotations"]) == {"summary", "description"}


def test_prometheus_in_compose_scrapes_all_brokers():
    promtool("check", "config", MONITORING / "prometheus.yml")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    brokers = {name for name in COMPOSE if name.startswith("broker-")}

    assert {target.split(":")[0] for target in targets} == brokers
    for name in brokers:
        listener = COMPOSE[name]["environment"].get("OTTLA_METRICS_LISTENER")
        assert listener == "0.0.0.0:9404"
        assert not any("9404" in port for port in COMPOSE[name]["ports"])
    assert {target.split(":")[1] for target in targets} == {"9404"}


def test_compose_mounts_what_is_there():
    grafana = MONITORING / "grafana" / "provisioning"
    for name in ("prometheus", "grafana"):
        service = COMPOSE[name]
        assert service["profiles"] == ["monitoring"]
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source, _, rest = volume.partition(":")
            assert not source.startswith(".") or ((ROOT / source).exists() and rest.endswith(":ro"))
    mounted = dict(volume.split(":")[:2] for volume in COMPOSE["grafana"]["volumes"])
    provider = yaml.safe_load((grafana / "dashboards" / "ottla.yml").read_text())["providers"][0]
    source = yaml.safe_load((grafana / "datasources" / "prometheus.yml").read_text())
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert mounted["./deploy/monitoring/grafana/dashboards"] == provider["options"]["path"]
    assert Path(home).name in {path.name for path in DASHBOARDS}
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


# Prometheus.


class Prometheus:
    """A Prometheus that scrapes brokers ten times a second or so."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self._url = f"http://{HOST}:{free_port()}"
        config = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(MONITORING / name) for name in ("rules.yml", "alerts.yml")],
            "scrape_configs": [
                {"job_name": "ottla", "static_configs": [{"targets": targets}]},
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the samples of an expression, now."""
        samples = self.get("query", query=expression)["result"]
        assert isinstance(samples, list)
        return samples

    def is_scraping(self, count: int) -> bool:
        try:
            up = self.query("up == 1 and count_over_time(up[1m]) > 4")
        except OSError:
            return False
        return len(up) == count

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreCluster]:
    arguments = (
        *("--metrics", f"{HOST}:0"),
        *("--set", "default.replication.factor=3"),
        *("--set", "min.insync.replicas=2"),
        *("--set", "group.initial.rebalance.delay.ms=0"),
        *("--set", "log.durability=fsync"),
    )
    folder = tmp_path_factory.mktemp("monitoring")
    with (
        EtcdCluster(folder / "etcd") as etcd,
        StoreCluster(folder / "brokers", etcd.url, 3, *arguments) as started,
    ):
        yield started


def metrics_address(log: Path) -> str:
    found = re.search(r"serving metrics  url=http://(\S+)/metrics", log.read_text())
    assert found is not None
    return found[1]


@pytest.mark.real_time
def test_prometheus_has_data_for_every_query_and_alert(cluster, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed (Debian's package prometheus)")
    targets = [metrics_address(broker.log) for broker in cluster]
    prometheus = Prometheus(tmp_path, targets)
    bootstrap = cluster[0].address
    try:
        with (
            Producer(bootstrap) as producer,
            Producer(bootstrap, transactional_id="t") as transactional,
            Consumer(bootstrap, "orders", group="billing") as consumer,
        ):

            def put_load() -> bool:
                producer.send_many("orders", [b"x" * 100] * 100)
                with transactional.transaction():
                    transactional.send("orders", b"y")
                for _ in range(20):
                    consumer.getone(timeout=30)
                consumer.commit()
                return prometheus.is_scraping(3)

            wait_until(put_load, "Prometheus scrapes")
            assert asyncio.run(produce_code(cluster[0], "missing", 0)) != 0
            queries = [
                query for query in ALL_QUERIES if not any(name in query for name in WITHOUT_SAMPLES)
            ]

            def has_data() -> bool:
                put_load()
                queries[:] = [query for query in queries if not prometheus.query(query)]
                return not queries

            assert len(ALL_QUERIES) - len(queries) == len(WITHOUT_SAMPLES)
            wait_until(has_data, f"data for {queries}")
        for alert in ALERTS:
            # A comparison filters; what it compares has to be there.
            compared = re.sub(r" (?:==|!=|>|<) [\d.]+", "", alert["expr"])
            assert compared != alert["expr"]
            assert prometheus.query(compared), alert["alert"]
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert len(rules) == len(RULES)
        for rule in rules:
            assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]
        firing = [rule["name"] for rule in rules if rule.get("state") == "firing"]
        assert firing == []
        assert prometheus.query("sum by (group) (ottla:group_lag:sum) > 0")
        # What Prometheus asked for was OpenMetrics.
        port = int(targets[0].rpartition(":")[2])
        assert fetch(port, accept="application/openmetrics-text")[1].endswith("# EOF\n")
    finally:
        prometheus.close()
