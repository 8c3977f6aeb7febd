"""What deploy/ asks Prometheus for is there, and docs/guides/observability.md tells of all that is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

import penstock
from broker_process import BrokerProcess
from penstock.errors import PenstockError
from penstock.server.access_file import add_key, set_quota
from penstock.server.config import load
from penstock.server.keys import make
from penstock.server.quotas import NAMES as QUOTAS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "observability.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
# What a node of a cluster tells beside: tests/cluster/operations/test_metrics.py compares it with the guide.
CLUSTER = dict(
    re.findall(
        r"^\| `(penstock_cluster_\w+)` \| \w+ \| (.*?) \|$",
        (ROOT / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
SCRAPING = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
# Of Prometheus itself.
_FOREIGN = {"up"}
_ADDED = {"instance", "job", "le"}


class Told(NamedTuple):
    kind: str
    help: str
    labels: set[str]
    series: set[str]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """What a broker that has done something tells at /metrics."""
    path = tmp_path_factory.mktemp("broker")
    key, kept = make("shop")
    add_key(path / "access.yaml", kept)
    set_quota(path / "access.yaml", "shop", dict.fromkeys(QUOTAS, 1_000_000_000))
    doors = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    broker = BrokerProcess(path / "data", *doors, "--log-level=info", f"--access={path / 'access.yaml'}")
    try:
        with penstock.connect(broker.address, key=key) as q:
            q.create_topic("orders", partitions=1, archive="required")
            q.publish("orders", b"x")
            with q.consumer("billing", "orders") as consumer:
                for message in consumer.poll(1):
                    message.ack()
            port = re.search(r"http=127\.0\.0\.1:(\d+)", broker.said)
            assert port is not None
            asked = {"authorization": f"Bearer {key}"}
            text = httpx.get(f"http://127.0.0.1:{port[1]}/metrics", headers=asked).text
    finally:
        broker.stop()
    return read(text)


def read(text: str) -> dict[str, Told]:
    told: dict[str, Told] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, help = line.split(" ", 3)
            told[name] = Told("", help, set(), set())
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            told[name] = told[name]._replace(kind=kind)
        else:
            series = re.match(r"[a-z_]+", line)
            assert series is not None
            family = told.get(series[0]) or told[series[0].rpartition("_")[0]]
            family.series.add(series[0])
            family.labels.update(re.findall(r'([a-z_]+)="', line))
    return told


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    variables = [one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one]
    return panels + variables + [rule["expr"] for rule in rules()]


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def test_every_series_that_is_asked_for_is_told(metrics: dict[str, Told]) -> None:
    there = {series for told in metrics.values() for series in told.series}
    for expression in expressions():
        asked = set(re.findall(r"\b(?:penstock_\w+|up)\b", expression))
        assert asked, expression
        assert asked <= there | CLUSTER.keys() | _FOREIGN, expression


def test_every_label_that_is_asked_for_is_on_one_of_those_series(metrics: dict[str, Told]) -> None:
    for expression in expressions():
        families = [
            told for told in metrics.values() if any(re.search(rf"\b{series}\b", expression) for series in told.series)
        ]
        has = {label for told in families for label in told.labels} | _ADDED
        has |= {label for name, help in CLUSTER.items() if name in expression for label in re.findall(r"`(\w+)`", help)}
        matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression)
        grouped = [
            label.strip() for some in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in some.split(",")
        ]
        assert {*matched, *grouped} <= has, expression


def test_every_metric_is_on_the_dashboard(metrics: dict[str, Told]) -> None:
    asked = " ".join(expressions())
    assert [name for name, told in metrics.items() if not any(series in asked for series in told.series)] == []
    assert [name for name in CLUSTER if name not in asked] == []


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    known = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(DASHBOARD))) <= known


def test_alerts_speak_of_codes_that_there_are() -> None:
    def codes(error: type[PenstockError]) -> set[str]:
        return {error.code}.union(*map(codes, error.__subclasses__()))

    (expression,) = [rule["expr"] for rule in rules() if rule["alert"] == "PenstockStorageErrors"]
    (named,) = re.findall(r'outcome=~"([^"]*)"', expression)
    assert set(named.split("|")) <= codes(PenstockError)


def test_every_alert_says_how_bad_it_is_and_what_it_is() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_what_the_nodes_of_a_cluster_tell_by_parts_is_put_together() -> None:
    """Each partition is told of by the node that leads it, and the members of a group by one of them."""
    by_name = {rule["alert"]: rule["expr"] for rule in rules()}
    for alert in ("PenstockHotPartition", "PenstockLagGrows", "PenstockGroupStands", "PenstockNoConsumers"):
        aggregated = re.findall(r"\b(?:sum|avg) by \(([^)]*)\)", by_name[alert])
        matched = re.findall(r"\bon \(([^)]*)\)", by_name[alert])
        assert aggregated, alert
        assert not any("instance" in labels for labels in aggregated + matched), alert
        # Nothing is compared with what one node tells alone.
        counted = re.findall(r"by \([^)]*\) \((?:sum by \([^)]*\) \()?(?:\w+\()?penstock_", by_name[alert])
        assert len(counted) == len(re.findall(r"penstock_\w+", by_name[alert])), alert
    panels = {panel["title"]: panel for panel in DASHBOARD["panels"]}
    (hot,) = panels["Hot partitions"]["targets"]
    assert "avg by (topic) (sum by (topic, partition)" in hot["expr"]


def test_prometheus_is_told_where_a_broker_is() -> None:
    (job,) = SCRAPING["scrape_configs"]
    config, _ = load(None, {}, {})
    assert job["job_name"] == "penstock"
    assert job["static_configs"] == [{"targets": [str(config.http)]}]
    assert SCRAPING["rule_files"] == ["alerts.yml"]


def test_the_guide_has_every_metric_with_its_kind_labels_and_meaning(metrics: dict[str, Told]) -> None:
    rows = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", GUIDE, re.MULTILINE)
    shown = {name: (kind, set(re.findall(r"`(\w+)`", labels)), help) for name, kind, labels, help in rows}
    assert len(shown) == len(rows)
    assert shown == {name: (told.kind, told.labels - {"le"}, told.help) for name, told in metrics.items()}


def test_the_settings_that_the_guide_shows_can_be_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(telemetry:.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "penstock.yaml").write_text(shown, encoding="utf-8")
    config, values = load(tmp_path / "penstock.yaml", {}, {})
    assert config.telemetry_endpoint == "http://127.0.0.1:4318"
    assert {value.name for value in values if value.source != "default"} == {
        "telemetry_endpoint",
        "telemetry_sample_ratio",
        "telemetry_service_name",
    }


def test_the_guide_has_every_alert() -> None:
    assert re.findall(r"^\| `(Penstock\w+)` \|", GUIDE, re.MULTILINE) == [rule["alert"] for rule in rules()]
