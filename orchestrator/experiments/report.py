"""The readout of an experiment: sample ratio, comparisons with the control, bounds, verdicts.

First the sample ratio: if the arms did not get the intended shares of units, the assignment is
biased and no difference can be trusted. Then, per metric, each arm against the control: an
always-valid interval (a confidence sequence).

If the store dropped the first requests of a run, the rest is a moving window. A sequential test is
valid only for a growing sample, so the report then claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, Final, Literal

import numpy as np
from pydantic_core import to_jsonable_python

from orchestrator.experiments.documents import Bound, Experiment, ExperimentState, MetricName
from orchestrator.experiments.metrics import (
    METRICS,
    Sample,
    Values,
    extremes,
    paired_values,
    values,
)
from orchestrator.experiments.outcome_log import ByArm, RequestRecord, comparable, served_by
from orchestrator.experiments.sequential import (
    Interval,
    RequiredUnits,
    SampleRatioTest,
    difference_interval,
    mean_interval,
    required_units,
    sample_ratio,
)

Verdict = Literal[
    "sample_ratio_mismatch",
    "too_early",
    "better",
    "worse",
    "breaks_bounds",
    "no_difference",
    "forgotten",
]
READOUTS: Final = 40  # times at which the plot over time has an interval
BOUND_ALPHA: Final = 0.05  # of a bound of the goal


@dataclass(frozen=True, slots=True)
class ArmMetric:
    """One arm's value of one metric."""

    mean: float
    units: int
    requests: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm against the control on one metric; `always_valid` holds at any number of looks.

    `units` counts the smaller arm; in a `paired` comparison, the control's units with a shadow.
    """

    arm: str
    against: str
    metric: MetricName
    units: int
    always_valid: Interval
    needed: RequiredUnits | None
    paired: bool = False


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """A bound of the goal for one arm: `surely` kept, surely `broken`, or undecided."""

    arm: str
    metric: MetricName
    than: str
    by: float
    always_valid: Interval
    surely: bool
    broken: bool


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    """The whole readout. Requests before `since` (seconds since 1970) were dropped.

    `readouts` are for a plot over time: at each of some times, by arm, the goal's estimate and the
    ends of its interval, of the requests until then.
    """

    experiment: str
    metric: MetricName
    alpha: float
    sample_ratio: SampleRatioTest | None
    since: float | None
    arms: Mapping[str, Mapping[MetricName, ArmMetric]]
    comparisons: Sequence[Comparison]
    bounds: Sequence[BoundCheck]
    stopped: Mapping[str, str]
    verdicts: Mapping[str, Verdict]
    sentence: str
    readouts: Sequence[Mapping[str, Any]]

    def json(self) -> dict[str, Any]:
        """Return JSON values; infinite bounds (too few values) become null."""
        found: dict[str, Any] = to_jsonable_python(self, inf_nan_mode="null")
        return found


def report(
    experiment: Experiment,
    state: ExperimentState,
    requests: Iterable[RequestRecord],
    since: float | None = None,
) -> ExperimentReport:
    """Analyse an experiment's requests; valid at any time and any number of times.

    Requests before `since` were dropped; None: `requests` are complete.
    """
    by_arm = comparable(served_by(experiment.weights, requests))
    comparer = _Comparer(experiment, state, by_arm, whole=since is None)
    others = [name for name in experiment.weights if name != experiment.base]
    comparisons = comparer.comparisons(METRICS)
    primary = {
        one.arm: one
        for one in comparisons
        if one.metric == experiment.goal.metric and one.units >= experiment.min_units
    }
    bounds = [comparer.bound(name, bound) for name in others for bound in experiment.goal.within]
    ratio = _ratio(experiment, state, by_arm)
    verdicts: dict[str, Verdict] = dict.fromkeys(others, "forgotten")
    if since is None:
        for name in others:
            own = [one for one in bounds if one.arm == name]
            verdicts[name] = _verdict(ratio, primary.get(name), own)
        sentence = _sentence(experiment, state, ratio, primary, verdicts)
    else:
        sentence = _no_claim(state, since)
    return ExperimentReport(
        experiment=experiment.name,
        metric=experiment.goal.metric,
        alpha=experiment.alpha,
        sample_ratio=ratio if since is None else None,
        since=since,
        arms={name: comparer.figures(name) for name in by_arm},
        comparisons=comparisons,
        bounds=bounds,
        stopped={name: stop.why for name, stop in state.stopped.items()},
        verdicts=verdicts,
        sentence=sentence,
        readouts=comparer.over_time() if since is None else [],
    )


class _Comparer:
    """Compares arms of one experiment with the control, each over the time when both were live.

    `whole`: no request of the run is missing; else intervals are infinite.
    """

    def __init__(
        self, experiment: Experiment, state: ExperimentState, by_arm: ByArm, *, whole: bool
    ) -> None:
        self._experiment, self._base, self._by_arm = experiment, experiment.base, by_arm
        self._whole, self._stopped = whole, {arm: one.at for arm, one in state.stopped.items()}
        # Bonferroni over the arms, which are all compared with one control.
        self._alpha = experiment.alpha / max(1, len(experiment.arms) - 1)
        # The log may be long, and every comparison uses the control.
        self._values: dict[tuple[str, MetricName, bool], Values] = {}

    def comparisons(self, metrics: Iterable[MetricName], until: float = inf) -> list[Comparison]:
        """Compare every other arm with the control, if both have values until then."""
        experiment, metrics = self._experiment, list(metrics)
        served = [name for name in experiment.weights if name != self._base]
        found = [self._compare(name, metric, until) for name in served for metric in metrics]
        shadows = [arm.name for arm in experiment.shadows]
        found += [self._pair(name, metric, until) for name in shadows for metric in metrics]
        return [one for one in found if one is not None]

    def _compare(self, name: str, metric: MetricName, until: float) -> Comparison | None:
        experiment = self._experiment
        own, control = self._samples(name, metric, until)
        if not own.count or not control.count:
            return None
        interval = self._claim(metric, difference_interval(own, control, self._alpha))
        needed = None
        if metric == experiment.goal.metric:
            wanted = experiment.goal.detect * abs(control.mean)
            ratio = experiment.weights[name] / experiment.weights[self._base]
            needed = required_units(own, control, wanted, ratio, self._alpha)
        return Comparison(name, self._base, metric, min(own.count, control.count), interval, needed)

    def _pair(self, name: str, metric: MetricName, until: float) -> Comparison | None:
        """Compare a shadow arm with the control on the same requests; None without a pair."""
        own = self._of(name, metric, True).until(until).sample(extremes(metric, paired=True))
        if not own.count:
            return None
        interval = self._claim(metric, mean_interval(own, self._alpha))
        return Comparison(name, self._base, metric, own.count, interval, needed=None, paired=True)

    def bound(self, name: str, bound: Bound) -> BoundCheck:
        """Check a bound of the goal for an arm."""
        found = difference_interval(*self._samples(name, bound.metric, inf), BOUND_ALPHA)
        interval = self._claim(bound.metric, found)
        low, high = interval.ends(METRICS[bound.metric].sign)
        surely, broken = bool(low >= -bound.by), bool(high < -bound.by)
        return BoundCheck(name, bound.metric, self._base, bound.by, interval, surely, broken)

    def over_time(self) -> list[dict[str, Any]]:
        """Return the goal's intervals as they were at some times of the run, evenly apart."""
        exposed = [one.exposure.at for own in self._by_arm.values() for one in own]
        times = np.linspace(min(exposed), max(exposed), READOUTS) if exposed else np.array([])
        return [
            {
                "at": round(at, 3),
                "intervals": {
                    one.arm: astuple(one.always_valid)
                    for one in self.comparisons([self._experiment.goal.metric], at)
                },
            }
            for at in np.unique(times).tolist()
        ]

    def _claim(self, metric: MetricName, interval: Interval) -> Interval:
        """Return what may be claimed; two shares differ by at most 1."""
        if not self._whole:
            return Interval(interval.estimate, -inf, inf)
        if not METRICS[metric].bounded or not isfinite(interval.low):
            return interval
        return Interval(interval.estimate, max(-1.0, interval.low), min(1.0, interval.high))

    def _samples(self, name: str, metric: MetricName, until: float) -> tuple[Sample, Sample]:
        """Return the samples of an arm and of the control, until the arm was stopped."""
        until = min(until, self._stopped.get(name, inf))
        return self._sample(name, metric, until), self._sample(self._base, metric, until)

    def _sample(self, name: str, metric: MetricName, until: float) -> Sample:
        return self._of(name, metric).until(until).sample(extremes(metric))

    def _of(self, name: str, metric: MetricName, paired: bool = False) -> Values:
        key, prices = (name, metric, paired), self._experiment.prices
        if key not in self._values and paired:
            self._values[key] = paired_values(self._by_arm[self._base], name, metric, prices)
        elif key not in self._values:
            self._values[key] = values(self._by_arm[name], metric, prices)
        return self._values[key]

    def figures(self, name: str) -> dict[MetricName, ArmMetric]:
        """Return every metric of an arm, over all its requests."""
        by_metric: dict[MetricName, ArmMetric] = {}
        for metric in METRICS:
            own = self._of(name, metric)
            if not len(own.at):
                continue
            mean, units = float(own.above.sum() / own.below.sum()), len(np.unique(own.units))
            by_metric[metric] = ArmMetric(mean, units, len(own.at))
        return by_metric


def _ratio(experiment: Experiment, state: ExperimentState, by_arm: ByArm) -> SampleRatioTest:
    """Test the numbers of units: of the live arms, or of all arms until the first was stopped."""
    live, until = [name for name in by_arm if name not in state.stopped], inf
    if len(live) < 2:
        live = list(by_arm)
        until = min((stop.at for stop in state.stopped.values()), default=inf)
    counts = {
        name: len({one.exposure.unit for one in by_arm[name] if one.exposure.at <= until})
        for name in live
    }
    return sample_ratio(counts, experiment.weights)


def _verdict(
    ratio: SampleRatioTest, comparison: Comparison | None, bounds: Sequence[BoundCheck]
) -> Verdict:
    """Return an arm's verdict by its comparison on the goal's metric, if it has enough units."""
    if not ratio.ok:
        return "sample_ratio_mismatch"
    if comparison is None:
        return "too_early"
    if any(bound.broken for bound in bounds):
        return "breaks_bounds"
    low, high = comparison.always_valid.ends(METRICS[comparison.metric].sign)
    if high < 0:
        return "worse"
    if not all(bound.surely for bound in bounds):
        return "too_early"
    if low > 0:
        return "better"
    wanted = comparison.needed.difference if comparison.needed is not None else 0.0
    return "no_difference" if max(-low, high) < wanted else "too_early"


def _sentence(
    experiment: Experiment,
    state: ExperimentState,
    ratio: SampleRatioTest,
    primary: Mapping[str, Comparison],
    verdicts: Mapping[str, Verdict],
) -> str:
    if not ratio.ok:
        seen = ", ".join(f"{name} {count}" for name, count in ratio.counts.items())
        wanted = ", ".join(f"{name} {count:.0f}" for name, count in ratio.expected.items())
        return (
            f"Do not trust this experiment (sample ratio mismatch): the arms were given {seen} "
            f"units, but {wanted} were expected (p = {ratio.p:.1g})."
        )
    sentences = []
    for arm, verdict in verdicts.items():
        sentence = _arm_sentence(experiment, arm, verdict, primary.get(arm))
        if arm in state.stopped:
            sentence += f", and was stopped ({state.stopped[arm].why})"
        sentences.append(sentence)
    if not sentences:
        return "Only one arm is served: see the paired comparisons of its shadows."
    return "; ".join(sentences) + "."


def _no_claim(state: ExperimentState, since: float) -> str:
    when = datetime.fromtimestamp(since, UTC)
    stops = (f" {arm} was stopped ({stop.why})." for arm, stop in state.stopped.items())
    return (
        f"No verdict: the requests before {when:%Y-%m-%d %H:%M} UTC are no longer kept, and a "
        "verdict needs all requests of a run. Start the experiment again for another verdict."
        f"{''.join(stops)}"
    )


def _arm_sentence(
    experiment: Experiment, arm: str, verdict: Verdict, comparison: Comparison | None
) -> str:
    title = METRICS[experiment.goal.metric].title
    if comparison is None:
        return (
            f"Not enough data for {arm}: a comparison by {title} needs {experiment.min_units} "
            "units in each arm"
        )
    interval, base, needed = comparison.always_valid, comparison.against, comparison.needed
    between = f"by {interval.low:.3g} to {interval.high:.3g}"
    sure = f"{100 * (1 - experiment.alpha):g} % sure at any number of looks"
    match verdict:
        case "better" | "worse":
            return f"{arm} is {verdict} than {base}: its {title} differs {between} ({sure})"
        case "breaks_bounds":
            return f"{arm} surely breaks a bound of the goal"
        case "no_difference":
            return (
                f"{arm} does as well as {base}: its {title} differs {between}, less than the "
                f"{needed.difference if needed else 0:.3g} that matter"
            )
        case _ if interval.ends(METRICS[comparison.metric].sign)[0] > 0:
            return (
                f"{arm} is ahead of {base}: its {title} differs {between}; it is too early to tell "
                "whether it keeps the goal's bounds"
            )
    known = f", so far differing {between}" if isfinite(interval.low) else ""
    wait = ""
    if needed is not None:
        wait = (
            f"; to see a difference of {needed.difference:.3g} takes about {needed.always_valid} "
            "units of the two arms"
        )
    return f"It is too early to tell {arm} from {base} by {title}{known}{wait}"
