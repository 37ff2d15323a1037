"""`baton calibrate`: thresholds of a pair, and the file that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from deploy.launch.deployment_file import load
from deploy.service.notes import pair_of, uncalibrated
from policies import POLICIES


def test_calibrate(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """The tiny models know nothing, so the judge turns all drafts down at 9 and none at 0."""
    config = ("--config", str(tiny_file), "--max-tokens", "40", "--limit", "2")
    asked = ("calibrate", "--policy", "specreason:answer_by=small", *config)
    ran = baton(*asked, "--target-large-share", "0.1", "--json")
    assert ran.status == 0
    document = json.loads(ran.out)
    told = document["policies"]["specreason"]
    assert (told["parameter"], told["met"], document["n"]) == ("threshold", True, 2)
    assert told["large_share"] <= 0.1
    assert told["params"]["threshold"] == told["value"]
    assert told["params"]["answer_by"] == "small"
    assert document["replayed_calls"] > document["live_calls"] > 0
    values = [point["value"] for point in told["tried"]]
    assert {0.0, 10.0} <= set(values)
    ran = baton(*asked, "--target-accuracy", "1")
    assert ran.status == 1
    assert "no threshold from 0 to 10 meets accuracy 1" in ran.err


def test_calibrate_measures_the_judge_that_the_policy_asks(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    """Parameters of the deployment file count as those of --policy do."""
    data = yaml.safe_load(tiny_file.read_text())
    params = {"cascade": {"judge": "short"}, "specreason": {"judge": "full"}}
    data["applications"][0]["args"]["policy"] = {"params": params}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(data))
    asked = ("calibrate", "--target-large-share", "1", "--limit", "1", "--max-tokens", "10")
    asked += ("--config", str(tmp_path / "two.yaml"))
    both = ("--policy", "specreason", "--policy", "cascade")
    ran = baton(*asked, *both, "--json")
    assert ran.status == 0, ran.err
    scorings = [judge["scoring"] for judge in json.loads(ran.out)["judge"]]
    assert len(scorings) == 2 * len(set(scorings)) > 0  # of either question

    data["applications"][0]["args"]["policy"] = {"params": {"cascade": {"accept_at": 4}}}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(data))
    asked += ("--parameter", "reject_below", "--range", "0,9")
    refused = baton(*asked, "--policy", "cascade")
    assert "--range: reject_below cannot be 9: " in refused.err
    assert baton(*asked, "--policy", "cascade:accept_at=10").status == 0


def test_calibrate_a_pair_on_questions_alone(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """Every policy and a file; a second run asks no model, and the file is served."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "What is 3+4?"}\n{"question": "Say hello."}\n')
    out = tmp_path / "pair.json"
    asked = ("calibrate", "--problems", str(questions), "--config", str(tiny_file))
    asked += ("--max-tokens", "10", "--target-large-share", "0.5", "--out", str(out))
    ran = baton(*asked)
    assert ran.status == 0
    assert "judge by expected: " in ran.out
    assert "2 questions" in ran.out
    document = json.loads(out.read_text())
    assert document["live_calls"] > 0
    named = [name for name, policy in POLICIES.items() if policy.calibrated is not None]
    assert sorted([*document["policies"], *document["unmet"]]) == sorted(named)
    assert document["large_only"]["agreement"] == 1.0
    assert document["large_only"]["accuracy"] is None
    assert all(row["large_share"] <= 0.5 for row in document["policies"].values())
    again = json.loads(baton(*asked, "--json").out)
    assert again["live_calls"] == 0
    assert again["policies"] == document["policies"]
    data = yaml.safe_load(tiny_file.read_text())
    data["applications"][0]["args"]["policy"] = {"calibration": str(out)}
    served = tmp_path / "served.yaml"
    served.write_text(yaml.safe_dump(data))
    args = load(served).args
    for name, row in document["policies"].items():
        policy = args.policy.policy(name)
        assert getattr(policy, row["parameter"]) == row["value"]
    assert uncalibrated(args) == []
    refused = baton(*asked[:-2], "--target-accuracy", "0.5")
    assert (refused.status, "give one target" in refused.err) == (2, True)
    other = [*asked[:5], "--target-accuracy", "0.5"]
    assert "--target-accuracy needs an answer" in baton(*other).err


def test_calibrate_into_a_file_that_holds_more(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    """A gate that was learned, and thresholds of other targets: each entry is its own run's."""
    out = tmp_path / "pair.json"
    gate = {"reading": {"bias": -1.0, "weights": {"read_worst": 1.0}}}
    learned = {"params": {"gate": gate}, "learned": {"drafts": 7}}
    pair = pair_of(load(tiny_file).args.workers)
    begun = {"baton_calibration": 1, "pair": pair, "policies": {"learned-gate": learned}}
    out.write_text(json.dumps(begun))
    asked = ("calibrate", "--config", str(tiny_file), "--max-tokens", "40", "--out", str(out))
    specreason = ("--policy", "specreason:answer_by=small")
    first = baton(*asked, *specreason, "--target-large-share", "0.1", "--limit", "2")
    assert first.status == 0, first.err
    assert "kept in the file as they were: learned-gate" in first.out
    assert "measured on the questions that chose the thresholds" in first.out
    document = json.loads(out.read_text())
    assert document["policies"]["learned-gate"] == learned
    row = document["policies"]["specreason"]
    assert (row["target"], row["n"]) == ({"measure": "large_share", "value": 0.1}, 2)
    assert row["in_sample"] is True

    # Another policy at another target leaves that entry as it is, and meets nothing itself.
    gated = ("--policy", "learned-gate")
    second = baton(*asked, *gated, "--target-accuracy", "1", "--limit", "3")
    assert second.status == 1
    assert "learned-gate: no risk from 0 to 1 meets accuracy 1" in second.err
    document = json.loads(out.read_text())
    assert document["policies"]["specreason"] == row
    assert document["policies"]["learned-gate"] == learned
    assert document["unmet"]["learned-gate"]["params"]["gate"]["reading"]["bias"] == -1.0

    third = baton(*asked, *gated, "--target-agreement", "0", "--limit", "3")
    assert third.status == 0, third.err
    document = json.loads(out.read_text())
    assert "learned-gate" not in document["unmet"]
    met = document["policies"]["learned-gate"]
    assert (met["n"], met["learned"]) == (3, learned["learned"])

    # A threshold that met an easier target is not served for one that nothing meets.
    fourth = baton(*asked, *specreason, "--target-accuracy", "1", "--limit", "2")
    assert fourth.status == 1
    document = json.loads(out.read_text())
    assert "specreason" not in document["policies"]
    assert document["unmet"]["specreason"]["met"] is False
    both = baton(*asked, *specreason, *gated, "--target-accuracy", "1", "--limit", "2", "--json")
    assert both.status == 1


def test_a_second_threshold_of_a_policy_is_searched_beside_the_first(
    baton: Any, tiny_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pair.json"
    asked = ("calibrate", "--config", str(tiny_file), "--max-tokens", "10", "--limit", "1")
    asked += ("--target-large-share", "1", "--out", str(out), "--policy", "bild")

    def found() -> Any:
        return json.loads(out.read_text())["policies"]["bild"]["params"]

    first = baton(*asked)
    assert first.status == 0, first.err
    fallback = found()["fallback"]
    second = baton(*asked, "--parameter", "rollback", "--range", "0.5,10")
    assert second.status == 0, second.err
    assert found().keys() == {"fallback", "rollback"}
    assert found()["fallback"] == fallback
    rollback = found()["rollback"]
    assert baton(*asked).status == 0
    assert found()["rollback"] == rollback
