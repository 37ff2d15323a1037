"""The dashboard and the alerts ask for series that exist, with labels that they have.

The names are those on Ray's metrics port; that a real node has them there, test_nodes shows.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from deploy.telemetry.metrics import count_replicas, metrics_text, worker_families
from orchestrator.experiments.assignment import enroll
from orchestrator.experiments.documents import Experiment
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.state.versions import AuditInfo
from orchestrator.types import Message
from policies.specreason import SpecReason
from tests.orchestrator.serving import service

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "baton.json").read_text())
MONITORING = DEPLOY / "kubernetes" / "components" / "monitoring"
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {"$__rate_interval": "5m", "$policy": ".*", "$worker": ".*"}
SUFFIX = re.compile(r"_(bucket|sum|count)$")

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")


@pytest.fixture(scope="module")
async def text() -> bytes:
    """What Ray's port shows of a service that has answered one request, by an experiment's arm."""
    made, response = service(), ResponseAccumulator()
    request = Request("r", (Message("user", "How many?"),))
    events = solve(SpecReason(), request, made.pools.workers, response)
    with made.metrics.request("specreason", response):
        async for _ in events:
            pass
    made.responses.labels("200").inc()
    arms = [{"name": "one", "policy": "specreason"}, {"name": "two", "policy": "bild"}]
    trial = Experiment.parse({"name": "trial", "arms": arms})
    run = await made.shared.experimenter.runs.start(trial, AuditInfo())
    enrollment = enroll([run], {"request": "r"})
    assert enrollment is not None
    made.shared.recorder.exposure(enrollment, "r")
    await made.shared.watcher.refresh()
    await made.shared.experimenter.update()
    count_replicas(made.registry, ("small", "large"))
    exported = metrics_text(
        [
            ("http", made.registry.collect()),
            ("one", worker_families("small", {})),
            ("two", worker_families("large", {})),
        ]
    )
    return re.sub(rb"^(# \w+ )?(?=baton_)", rb"\1ray_", exported, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def labels(text: bytes) -> dict[str, set[str]]:
    return labels_of(text.decode())


def labels_of(text: str) -> dict[str, set[str]]:
    """The labels of every sample that there is."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition(" ")[0].partition("{")
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', rest))
    return found


def walk(node: Any) -> Iterator[Any]:
    """An expression and all its parts."""
    match node:
        case promql.MatrixSelector():
            yield node.vector_selector
        case promql.BinaryExpr():
            yield from (*walk(node.lhs), *walk(node.rhs))
        case promql.Call():
            for argument in node.args:
                yield from walk(argument)
        case promql.AggregateExpr() | promql.ParenExpr():
            yield from walk(node.expr)
    yield node


def check(query: str, labels: dict[str, set[str]]) -> None:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    tree = promql.parse(query)
    selectors = [part for part in walk(tree) if isinstance(part, promql.VectorSelector)]
    assert selectors
    for selector in selectors:
        assert selector.name in labels, selector.name
        assert {one.name for one in selector.matchers.matchers} <= labels[selector.name]
    for part in walk(tree):
        if isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            below = [one for one in walk(part.expr) if isinstance(one, promql.VectorSelector)]
            for selector in below:
                assert set(part.modifier.labels) <= labels[selector.name], query


@pytest.mark.parametrize("query", QUERIES)
def test_every_panel_asks_for_what_there_is(query: str, labels: dict[str, set[str]]) -> None:
    check(query, labels)


def test_the_check_finds_what_is_not_there(labels: dict[str, set[str]]) -> None:
    for query in (
        "ray_baton_nothing",
        'ray_baton_requests_total{policies="bild"}',
        "sum by (worker) (ray_baton_requests_total)",
        "rate(ray_baton_requests_total{$__rate_interval})",
    ):
        with pytest.raises((AssertionError, ValueError)):
            check(query, labels)


def test_every_series_is_on_the_dashboard_or_known_not_to_be(labels: dict[str, set[str]]) -> None:
    shown = {
        part.name
        for query in (*QUERIES, *(rule["expr"] for rule in RULES))
        for part in walk(promql.parse(query.replace("$__rate_interval", "5m")))
        if isinstance(part, promql.VectorSelector)
    }
    families = {SUFFIX.sub("", name) for name in labels}
    assert families - {SUFFIX.sub("", name) for name in shown} == {
        "ray_baton_prefill_tokens_total",  # the pools' own counts say the same, replica by replica
        "ray_baton_cached_tokens_total",
        "ray_baton_worker_calls_total",
        "ray_baton_worker_switches_total",
        "ray_baton_worker_lossy",
        "ray_baton_worker_ahead_tokens_total",  # what running ahead gives, for who tunes it
        "ray_baton_worker_adopted_tokens_total",
        "ray_baton_worker_drafted_tokens_total",  # emitted and rounds say the same in one number
        "ray_baton_worker_accepted_tokens_total",
    }


def test_the_panels_are_whole() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        places.add((place["x"], place["y"]))
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    assert len(places) == len(PANELS)
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"source", "policy", "worker"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_asks_for_what_there_is_and_says_what_to_do(
    rule: dict[str, Any], labels: dict[str, set[str]]
) -> None:
    check(rule["expr"], labels)
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"].endswith(".")
    assert len(rule["annotations"]["action"].split()) > 15
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    tree = promql.parse(rule["expr"])
    selectors = [part for part in walk(tree) if isinstance(part, promql.VectorSelector)]
    assert used <= labels[selectors[0].name]


def test_names_and_help_keep_prometheus_rules(text: bytes) -> None:
    """What `promtool check metrics` looks at, for machines that lack it."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text.decode(), re.M))
    assert kinds.keys() == helps.keys()
    assert len(kinds) > 30
    for name, kind in kinds.items():
        assert re.fullmatch(r"ray_baton_[a-z]+(_[a-z]+)*", name)
        assert (kind == "counter") == name.endswith("_total"), name
        assert not re.search(r"_(ms|milliseconds|minutes|gauge|counter|histogram)(_|$)", name)
        assert name.endswith("_seconds") or kind != "histogram"
        assert helps[name].endswith("."), name
        assert len(helps[name].split()) > 3, name
    seen: list[str] = []
    for line in text.decode().splitlines():
        name = SUFFIX.sub(
            "", re.split(r"[ {]", line.removeprefix("# TYPE ").removeprefix("# HELP "))[0]
        )
        if not seen or seen[-1] != name:
            seen.append(name)
    assert len(seen) == len(set(seen))  # the lines of a family stand together


def test_the_guide_says_what_every_alert_means_and_of_no_other() -> None:
    guide = (DEPLOY.parent / "docs" / "operate.md").read_text()
    table = re.findall(r"^\| `(Baton\w+)` \| \w.*\|$", guide, re.MULTILINE)
    assert table == [rule["alert"] for rule in RULES]
    assert set(re.findall(r"`(Baton[A-Z]\w+)`", guide)) == set(table)


SERIES = {  # one that makes each alert fire, as promtool writes series, without `ray_baton_`
    "BatonDown": [],
    "BatonPoolEmpty": ['worker_replicas{worker="large"} 0x90'],
    "BatonRequestsFail": [
        'requests_total{outcome="unavailable"} 0+1x90',
        'requests_total{outcome="stop"} 0+20x90',
    ],
    "BatonRefuses": [
        'http_responses_total{code="429"} 0+1x90',
        'http_responses_total{code="200"} 0+10x90',
    ],
    "BatonOrchestratorBusy": [
        "orchestrator_replicas 2x90",
        "orchestrator_cpu_seconds_total 0+114x90",
    ],
    "BatonPoolFull": [
        'worker_queued{worker="small"} 64x90',  # no more wait in a replica
        'worker_rows{worker="small"} 256x90',
    ],
    "BatonPrefixesLost": [
        'worker_affine_calls_total{worker="large"} 0+80x90',
        'worker_later_calls_total{worker="large"} 0+100x90',
    ],
    "BatonCacheTooSmall": [
        'worker_prefixes{worker="large"} 30x90',
        'worker_slots{worker="large"} 16x90',
    ],
    "BatonCallsLost": ['lost_calls_total{worker="large"} 0+3x90'],
    "BatonSharingDoesNotPay": [
        'steps_total{author="small",accepted="true"} 0+10x90',
        'steps_total{author="small",accepted="false"} 0+90x90',
    ],
    "BatonConfigurationOld": ["config_age_seconds 0+60x90"],
    "BatonNotInEffect": ["config_set_aside 0x70 1x20"],
    "BatonOutcomesLost": ['store_lost_total{kind="event"} 0x70 1x20'],
    "BatonArmStopped": ['experiment_arms_stopped_total{experiment="trial"} 0x70 1x20'],
}


@promtool
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_fires_when_it_should(rule: dict[str, Any], tmp_path: Path) -> None:
    lines = SERIES[rule["alert"]]
    if rule["alert"] != "BatonDown" and "orchestrator_replicas" not in str(lines):
        lines = ["orchestrator_replicas 1x90", *lines]
    pairs = [line.partition(" ") for line in lines]
    series = [{"series": f"ray_baton_{name}", "values": values} for name, _, values in pairs]
    labels = rule["labels"] | dict(re.findall(r'(worker|kind|experiment)="(\w+)"', str(lines)))
    quiet = [{key: one[key] for key in one if key != "annotations"} for one in RULES]
    rules = tmp_path / "rules.yaml"  # annotations would have to be spelled out below
    rules.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": quiet}]}))
    expected = [
        {
            "eval_time": "80m",
            "alertname": other["alert"],
            "exp_alerts": [{"exp_labels": labels}] if other is rule else [],
        }
        for other in RULES
    ]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": expected}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
