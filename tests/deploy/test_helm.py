"""The Helm chart: what it renders, and that brokers accept the configs in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dockerfile import parse
from ottla import __version__
from ottla.broker.cluster.store.store_url import parse_store_url
from ottla.broker.config.broker_config import BROKER_CONFIGS
from ottla.broker.config.loader import load_broker_config

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "ottla"
IMAGE = parse(ROOT / "Dockerfile")["broker"]
ETCD = "etcd.endpoints={etcd-0:2379,etcd-1:2379}"
MONITORING = (
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboards.enabled=true",
)
SECURED = (
    ETCD,
    "etcd.tlsSecret=etcd-tls",
    "etcd.hasClientCertificate=true",
    "security.enabled=true",
    r"configs.default\.replication\.factor=3",
    *MONITORING,
)


def helm(*arguments: str | Path) -> str:
    program = os.environ.get("TEST_HELM") or shutil.which("helm")
    if program is None:
        pytest.skip("helm is not installed (or its path in TEST_HELM)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(*values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the manifests by kind and name."""
    flags = [flag for value in values for flag in ("--set", value)]
    version = ("--kube-version", "1.30.0")
    text = helm("template", "ottla", CHART, "--namespace", "kafka", *version, *flags)
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return {(one["kind"], one["metadata"]["name"]): one for one in manifests}


def container_of(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    (container,) = manifests["StatefulSet", "ottla"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def environment_of(container: dict[str, Any], index: int = 1) -> dict[str, str]:
    """Return the environment of a pod, as Kubernetes expands it."""
    environ = dict(IMAGE.environment)
    for variable in container["env"]:
        if "value" in variable:
            text = variable["value"]
        elif "secretKeyRef" in variable["valueFrom"]:
            text = f"secret-of-{variable['valueFrom']['secretKeyRef']['key']}"
        else:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            text = f"ottla-{index}" if path == "metadata.name" else str(index)
        environ[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: environ[m[1]], str(text))
    return {name: text for name, text in environ.items() if name.startswith("OTTLA_")}


def test_the_chart_is_valid():
    helm("lint", "--strict", CHART)


def test_the_chart_is_for_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == __version__


def test_the_templates_name_configs_that_exist():
    """Without helm, too."""
    names = {f"OTTLA_{name.upper().replace('.', '_')}" for name in BROKER_CONFIGS}
    text = (CHART / "templates" / "statefulset.yaml").read_text()
    used = set(re.findall(r"name: (OTTLA_\w+),? ?", text)) - {"OTTLA_"}

    assert len(used) > 10
    assert {name for name in used if "LISTENER_NAME_INTERNAL_" not in name} <= names
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values["configs"]) <= set(BROKER_CONFIGS)


def test_brokers_without_etcd_know_each_other():
    manifests = rendered()
    config = load_broker_config({}, environment_of(container_of(manifests)), warn=pytest.fail)

    assert config.broker_id == 1
    assert config.cluster_file.broker_ids == (0, 1, 2)
    domain = "ottla-brokers.kafka.svc"
    endpoint = config.cluster_file.brokers[2]["INTERNAL"]
    assert (endpoint.host, endpoint.port) == (f"ottla-2.{domain}", 9092)
    assert config.log_dir == container_of(manifests)["volumeMounts"][0]["mountPath"]
    assert manifests["Service", "ottla-brokers"]["spec"]["publishNotReadyAddresses"] is True
    assert manifests["StatefulSet", "ottla"]["spec"]["serviceName"] == "ottla-brokers"
    assert {kind for kind, _name in manifests} == {"PodDisruptionBudget", "Service", "StatefulSet"}


def test_secured_brokers_with_etcd():
    manifests = rendered(*SECURED)
    container = container_of(manifests)
    environ = environment_of(container)
    config = load_broker_config({}, environ, warn=pytest.fail)

    assert parse_store_url(config.cluster_store)
    assert config.cluster_store.startswith("etcds://etcd-0:2379,etcd-1:2379/")
    (listener,) = config.parsed_listeners
    assert listener.advertised_host == "ottla-1.ottla-brokers.kafka.svc"
    assert config.security_of("INTERNAL").authenticates
    assert config.default_replication_factor == 3
    assert not config.allow_insecure_listeners
    assert "password=secret-of-adminPassword" in config.sasl_bootstrap_users
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in (
        config.cluster_store_ssl_truststore_location,
        config.cluster_store_ssl_keystore_location,
        environ["OTTLA_SSL_KEYSTORE_LOCATION"],
    ):
        assert str(Path(path).parent) in mounted


@pytest.mark.parametrize("values", [(), SECURED], ids=["plain", "secured"])
def test_pods_are_confined_and_probed(values):
    manifests = rendered(*values)
    pod = manifests["StatefulSet", "ottla"]["spec"]["template"]["spec"]
    container = container_of(manifests)
    user = int(IMAGE.last("USER").split(":")[0])

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["enableServiceLinks"] is False
    config = load_broker_config({}, environment_of(container), warn=pytest.fail)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.metrics_endpoint is not None
    assert ports == {"kafka": 9092, "metrics": config.metrics_endpoint.port}
    assert pod["terminationGracePeriodSeconds"] * 1000 > config.shutdown_timeout_ms
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert probes["liveness"] == {"path": "/health", "port": "metrics"}
    assert probes["readiness"] == {"path": "/ready", "port": "metrics"}
    for service in ("ottla", "ottla-brokers"):
        selector = manifests["Service", service]["spec"]["selector"]
        labels = manifests["StatefulSet", "ottla"]["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()


def test_the_operator_gets_the_rules_and_grafana_the_dashboards():
    manifests = rendered(*MONITORING)
    monitor = manifests["ServiceMonitor", "ottla"]["spec"]
    service = manifests["Service", "ottla-brokers"]
    alerts = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yml").read_text())
    dashboards = [name for kind, name in manifests if kind == "ConfigMap"]

    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert manifests["PrometheusRule", "ottla-alerts"]["spec"] == alerts
    assert len(dashboards) == 5
    assert len(manifests) == 4 + 1 + 2 + 5
