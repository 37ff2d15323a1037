"""The readout of an experiment: sample ratio, comparisons with the control, bounds, verdicts.

First the sample ratio: if the arms did not get the intended shares of units, the assignment is
biased and no difference can be trusted. Then, per metric, each arm against the control: an
always-valid interval (a confidence sequence).

If the store dropped the first requests of a run, the rest is a moving window. A sequential test is
valid only for a growing sample, so the report then claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import numpy as np

from orchestrator.experiments.documents import Bound, Experiment, ExperimentState, MetricName
from orchestrator.experiments.metrics import METRICS
from orchestrator.experiments.outcome_log import (
    ByArm,
    RequestRecord,
    analysis_set,
    comparable,
)
from orchestrator.experiments.samples import (
    MetricValues,
    Sample,
    linearise,
    metric_values,
    paired_sample,
)
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
QUANTILES: Final = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class ArmMetric:
    """One arm's value of one metric; `quantiles` are over requests, for times."""

    mean: float
    units: int
    requests: int
    quantiles: Mapping[str, float] = field(default_factory=dict)


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
    relative: float | None  # the difference as a share of the control's value
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
    """The whole readout. Requests before `since` (seconds since 1970) were dropped."""

    experiment: str
    metric: MetricName
    alpha: float
    sample_ratio: SampleRatioTest | None
    forced_requests: int
    moved_units: int
    unreadable: int
    since: float | None
    arms: Mapping[str, Mapping[MetricName, ArmMetric]]
    comparisons: Sequence[Comparison]
    bounds: Sequence[BoundCheck]
    stopped: Mapping[str, str]
    verdicts: Mapping[str, Verdict]
    sentence: str

    def json(self) -> dict[str, Any]:
        """Return JSON values; infinite bounds (too few values) become null."""
        values: dict[str, Any] = _finite(asdict(self))
        return values


def report(
    experiment: Experiment,
    state: ExperimentState,
    requests: Iterable[RequestRecord],
    unreadable: int = 0,
    since: float | None = None,
) -> ExperimentReport:
    """Analyse an experiment's requests; valid at any time and any number of times.

    Requests before `since` were dropped; None: `requests` are complete.
    """
    served = [arm.name for arm in experiment.served]
    usable = analysis_set(requests, served)
    by_arm = comparable(usable.by_arm)
    comparer = _Comparer(experiment, state, by_arm, whole=since is None)
    others = [name for name in served if name != experiment.base]
    found = [comparer.compare(name, metric) for name in others for metric in METRICS]
    found += [comparer.pair(arm.name, metric) for arm in experiment.shadows for metric in METRICS]
    comparisons = [comparison for comparison in found if comparison is not None]
    bounds = [comparer.bound(name, bound) for name in others for bound in experiment.goal.within]
    bounds = [one for one in bounds if one.than != one.arm]
    if since is None:
        ratio = _ratio(experiment, state, by_arm)
        verdicts: dict[str, Verdict] = {
            name: _verdict(experiment, ratio, comparisons, bounds, name) for name in others
        }
        sentence = _sentence(experiment, state, ratio, comparisons, verdicts)
    else:
        ratio, verdicts = None, dict.fromkeys(others, "forgotten")
        sentence = _no_claim(state, since)
    return ExperimentReport(
        experiment=experiment.name,
        metric=experiment.goal.metric,
        alpha=experiment.alpha,
        sample_ratio=ratio,
        forced_requests=usable.forced,
        moved_units=usable.moved_units,
        unreadable=unreadable,
        since=since,
        arms={name: comparer.figures(name) for name in by_arm},
        comparisons=comparisons,
        bounds=bounds,
        stopped={name: stop.why for name, stop in state.stopped.items()},
        verdicts=verdicts,
        sentence=sentence,
    )


class _Comparer:
    """Compares arms of one experiment, each pair over the time when both were live.

    `whole`: no request of the run is missing; else intervals are infinite.
    """

    def __init__(
        self, experiment: Experiment, state: ExperimentState, by_arm: ByArm, *, whole: bool
    ) -> None:
        self._experiment, self._state, self._by_arm = experiment, state, by_arm
        self._whole = whole
        # Bonferroni over the arms, which are all compared with one control.
        self._alpha = experiment.alpha / max(1, len(experiment.arms) - 1)
        self._values: dict[tuple[str, MetricName, float], MetricValues] = {}

    def compare(self, name: str, metric: MetricName) -> Comparison | None:
        """Compare a served arm with the control; None if either has no values."""
        experiment, base = self._experiment, self._experiment.base
        own, control = self._samples(name, base, metric)
        if not own.count or not control.count:
            return None
        wanted = (
            experiment.goal.detect * abs(control.mean) if metric == experiment.goal.metric else 0
        )
        ratio = experiment.weights[name] / experiment.weights[base]
        interval = self._interval(metric, own, control, self._alpha)
        return Comparison(
            arm=name,
            against=base,
            metric=metric,
            units=min(own.count, control.count),
            always_valid=interval,
            relative=interval.estimate / control.mean if control.mean else None,
            needed=required_units(own, control, wanted, ratio, self._alpha, experiment.tuned_for),
        )

    def pair(self, name: str, metric: MetricName) -> Comparison | None:
        """Compare a shadow arm with the control on the same requests; None without a pair."""
        experiment, base = self._experiment, self._experiment.base
        own = paired_sample(self._by_arm[base], name, metric, experiment.prices)
        if not own.count:
            return None
        interval = self._claim(metric, mean_interval(own, self._alpha, experiment.tuned_for))
        usual = self._sample(base, metric, float("inf"))
        relative = interval.estimate / usual.mean if usual.mean else None
        return Comparison(
            name, base, metric, own.count, interval, relative, needed=None, paired=True
        )

    def bound(self, name: str, bound: Bound) -> BoundCheck:
        """Check a bound of the goal for an arm."""
        than = bound.than or self._experiment.base
        own, other = self._samples(name, than, bound.metric)
        interval = self._interval(bound.metric, own, other, 1 - bound.confidence)
        low, high = interval.ends(METRICS[bound.metric].sign)
        surely, broken = bool(low >= -bound.by), bool(high < -bound.by)
        return BoundCheck(name, bound.metric, than, bound.by, interval, surely, broken)

    def _interval(self, metric: MetricName, own: Sample, other: Sample, alpha: float) -> Interval:
        interval = difference_interval(own, other, alpha, self._experiment.tuned_for)
        return self._claim(metric, interval)

    def _claim(self, metric: MetricName, interval: Interval) -> Interval:
        """Return what may be claimed; two shares differ by at most 1."""
        if not self._whole:
            return Interval(interval.estimate, -np.inf, np.inf)
        if not METRICS[metric].bounded or not np.isfinite(interval.low):
            return interval
        return Interval(interval.estimate, max(-1.0, interval.low), min(1.0, interval.high))

    def _samples(self, name: str, than: str, metric: MetricName) -> tuple[Sample, Sample]:
        """Return the samples of two arms until the first of them was stopped."""
        ends = [stop.at for arm, stop in self._state.stopped.items() if arm in (name, than)]
        until = min(ends, default=float("inf"))
        return self._sample(name, metric, until), self._sample(than, metric, until)

    def _sample(self, name: str, metric: MetricName, until: float) -> Sample:
        return linearise(self._metric_values(name, metric, until).sums, METRICS[metric].bounded)

    def _metric_values(self, name: str, metric: MetricName, until: float) -> MetricValues:
        key = name, metric, until
        if key not in self._values:  # the log may be long, and every comparison uses the control
            own: Sequence[RequestRecord] = self._by_arm[name]
            if until < float("inf"):
                own = [one for one in own if one.exposure.at <= until]
            self._values[key] = metric_values(own, metric, self._experiment.prices)
        return self._values[key]

    def figures(self, name: str) -> dict[MetricName, ArmMetric]:
        """Return every metric of an arm, over all its requests."""
        by_metric: dict[MetricName, ArmMetric] = {}
        for metric, described in METRICS.items():
            own = self._metric_values(name, metric, float("inf"))
            if len(own.values):
                above, below = own.sums.sum(axis=0)
                timed = described.title.endswith("ms")
                quantiles = {
                    f"p{q * 100:g}": float(np.quantile(own.values, q)) for q in QUANTILES if timed
                }
                by_metric[metric] = ArmMetric(
                    float(above / below), len(own.sums), len(own.values), quantiles
                )
        return by_metric


def _ratio(experiment: Experiment, state: ExperimentState, by_arm: ByArm) -> SampleRatioTest:
    """Test the numbers of units: of the live arms, or of all arms until the first was stopped."""
    live = [name for name in by_arm if name not in state.stopped]
    until = float("inf")
    if len(live) < 2:
        live = list(by_arm)
        until = min((stop.at for stop in state.stopped.values()), default=until)
    counts = {
        name: len({one.exposure.unit for one in by_arm[name] if one.exposure.at <= until})
        for name in live
    }
    return sample_ratio(counts, experiment.weights)


def _verdict(
    experiment: Experiment,
    ratio: SampleRatioTest,
    comparisons: Sequence[Comparison],
    bounds: Sequence[BoundCheck],
    arm: str,
) -> Verdict:
    if not ratio.ok:
        return "sample_ratio_mismatch"
    own = [bound for bound in bounds if bound.arm == arm]
    comparison = _primary(experiment, comparisons, arm)
    if comparison is None:
        return "too_early"
    if any(bound.broken for bound in own):
        return "breaks_bounds"
    low, high = comparison.always_valid.ends(METRICS[comparison.metric].sign)
    if high < 0:
        return "worse"
    if not all(bound.surely for bound in own):
        return "too_early"
    if low > 0:
        return "better"
    wanted = comparison.needed.difference if comparison.needed is not None else 0.0
    return "no_difference" if max(-low, high) < wanted else "too_early"


def _primary(
    experiment: Experiment, comparisons: Sequence[Comparison], arm: str
) -> Comparison | None:
    """Return the arm's comparison on the goal's metric, once it has `min_units` units."""
    for one in comparisons:
        if one.arm == arm and one.metric == experiment.goal.metric and not one.paired:
            return one if one.units >= experiment.min_units else None
    return None


def _sentence(
    experiment: Experiment,
    state: ExperimentState,
    ratio: SampleRatioTest,
    comparisons: Sequence[Comparison],
    verdicts: Mapping[str, Verdict],
) -> str:
    if not ratio.ok:
        seen = ", ".join(f"{name} {count}" for name, count in ratio.counts.items())
        wanted = ", ".join(f"{name} {count:.0f}" for name, count in ratio.expected.items())
        return (
            f"Do not trust this experiment (sample ratio mismatch): the arms were given {seen} "
            f"units, but {wanted} were expected (p = {ratio.p:.1g})."
        )
    title = METRICS[experiment.goal.metric].title
    sentences = []
    for arm, verdict in verdicts.items():
        comparison = _primary(experiment, comparisons, arm)
        sentence = _arm_sentence(experiment, arm, verdict, comparison, title)
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
    experiment: Experiment, arm: str, verdict: Verdict, comparison: Comparison | None, title: str
) -> str:
    if comparison is None:
        return (
            f"Not enough data for {arm}: a comparison by {title} needs {experiment.min_units} "
            "units in each arm"
        )
    interval, base = comparison.always_valid, comparison.against
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
                f"{comparison.needed.difference if comparison.needed else 0:.3g} that matter"
            )
        case _ if interval.ends(METRICS[comparison.metric].sign)[0] > 0:
            return (
                f"{arm} is ahead of {base}: its {title} differs {between}; it is too early to tell "
                "whether it keeps the goal's bounds"
            )
        case _:
            wait = ""
            if comparison.needed is not None:
                wait = (
                    f"; to see a difference of {comparison.needed.difference:.3g} takes about "
                    f"{comparison.needed.always_valid} units of the two arms"
                )
            known = "" if not np.isfinite(interval.low) else f", so far differing {between}"
            return f"It is too early to tell {arm} from {base} by {title}{known}{wait}"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
