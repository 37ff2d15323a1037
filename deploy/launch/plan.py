"""A deployment file for two models, from a look at the machine and at the servers.

It writes a file as any other: a start to be edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from deploy.launch.placement import place
from deploy.launch.served import ServedModel
from deploy.launch.sizes import Machine, ModelSize, one_vocabulary
from deploy.launch.source import Source
from orchestrator.errors import ConfigError
from orchestrator.loop.actions import WorkerName

SHARING = {"default": "bild", "params": {"bild": {"rollback": 1.5}}}
"""So the pretrained pair answers as well as its large model (deploy/lab/results)."""
BUSY = {"answers": 2, "policy": "large-only"}
"""For two models that share a CPU: from this load on `bild` gives fewer answers a second than the
large model alone (deploy/lab/results)."""
VERIFYING = ("bild", "learned-gate")
"""Policies whose large model verifies the small one's tokens, in one vocabulary."""
READING_DRAFTS = ("bild", "learned-gate", "cascade", "advisor")
"""Policies that need the small model's log-probabilities of its drafts."""

Model = ModelSize | ServedModel
Settings = dict[WorkerName, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """The workers and the policy of a deployment file, and the reasons for them."""

    workers: dict[str, dict[str, Any]]
    policy: dict[str, Any]
    reasons: tuple[str, ...]

    def text(self, port: int = 8000) -> str:
        """The deployment file."""
        data = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": port, "keep_alive_timeout_s": 65},
            "logging_config": {"log_level": "WARNING", "enable_access_log": False},
            "applications": [
                {
                    "name": "baton",
                    "route_prefix": "/",
                    "import_path": "deploy.app:build",
                    "args": {
                        "workers": self.workers,
                        "policy": self.policy,
                        "store": "memory",
                    },
                }
            ],
        }
        head = "".join(f"# {' '.join(reason.split())}\n" for reason in self.reasons)
        return head + yaml.safe_dump(data, sort_keys=False)


async def look(source: Source) -> Model:
    """Read the size of a model that runs here, or ask the server that has it.

    Raises:
        ConfigError: it cannot be used.
    """
    if source.url is not None:
        return await ServedModel.look(source)
    return ModelSize.of(str(source.model))


def plan(
    small: Model, large: Model, machine: Machine | None, settings: Settings | None = None
) -> DeploymentPlan:
    """Plan on what the two models run, and by which policy they share.

    Args:
        machine: what runs the models that are on no server; None if both are on one.
        settings: fields of each worker that the user named, by worker.

    Raises:
        ConfigError: they do not fit; the message says what is missing.
    """
    pair: dict[WorkerName, Model] = {"small": small, "large": large}
    local = {name: one for name, one in pair.items() if isinstance(one, ModelSize)}
    if len(local) == 2 and local["small"].parameters > local["large"].parameters:
        raise ConfigError(
            f"--small {small.name} has {_billions(local['small'])} parameters and --large "
            f"{large.name} {_billions(local['large'])}: is it the other way round?"
        )
    workers: dict[str, dict[str, Any]] = {}
    reasons = ["Written by `baton serve --small --large` for these two models:"]
    for name, one in pair.items():
        reasons.append(f"{name}: {one if isinstance(one, ServedModel) else one.name}")
    if local and machine is not None:
        placed, why = place(local, machine)
        workers |= placed
        reasons += [f"This machine: {machine}.", *why]
        if named := [f"{name}.{key}" for name in local for key in (settings or {}).get(name, {})]:
            reasons.append(f"The lines above leave out what you named: {', '.join(named)}.")
    for name, one in pair.items():
        if isinstance(one, ServedModel):
            workers[name] = one.worker
        workers[name] |= (settings or {}).get(name, {})
    on_cpu = machine is not None and not machine.gpus
    policy, why_policy = _policy(small, large, one_cpu=on_cpu and len(local) == 2)
    return DeploymentPlan(
        {name: workers[name] for name in pair},
        policy,
        (
            *reasons,
            *why_policy,
            *_refusals(small, large),
            "Thresholds of the policies were not measured on this pair: `baton calibrate` does.",
            "Sampling that a request does not name is the large model's generation_config.json's, "
            "over a server greedy;",
            "`sampling: {temperature: 0.7, top_p: 0.95}` beside `workers` says otherwise.",
        ),
    )


def _policy(small: Model, large: Model, *, one_cpu: bool) -> tuple[dict[str, Any], list[str]]:
    """What the model name `baton` means, and why: of the policies that the pair can run, the one
    that measures best on a pretrained pair (deploy/lab/results)."""
    if not _lacks(small, large, "bild"):
        policy: dict[str, Any] = dict(SHARING)
        why = ["One vocabulary: the large model corrects single tokens of the small one (bild)."]
        if one_cpu:
            policy["when_busy"] = BUSY
            why.append(
                f"While {BUSY['answers']} answers are being made, the large model answers the next "
                "one alone (when_busy): sharing saves no work, and a busy CPU has none to spare."
            )
        return policy, why
    params = {} if _judges(large) else {"params": {"specreason": {"scoring": "greedy"}}}
    return (
        {"default": "large-only"} | params,
        [
            "No policy that was measured on a pair like this keeps the large model's accuracy, so "
            "it answers alone (large-only). The model `specreason` shares steps: half of the large "
            "tokens, 7 points less on the pretrained pair.",
        ],
    )


def _refusals(small: Model, large: Model) -> Iterator[str]:
    """Say what policies this pair cannot run, or not fast, and why."""
    why: dict[str, list[str]] = {}
    for policy in dict.fromkeys((*VERIFYING, *READING_DRAFTS)):
        why.setdefault(_lacks(small, large, policy), []).append(policy)
    able = why.pop("", [])
    for reason, policies in why.items():
        yield f"Not for this pair: {', '.join(policies)} ({reason})."
    slow = [policy for policy in able if policy in VERIFYING]
    if slow and isinstance(large, ServedModel) and large.able.dialect.rereads:
        yield "The large model's server reads the whole prompt for each check of these policies:"
        yield f"{', '.join(slow)}. Without a GPU they may be slower than large-only: compare."
    if not _judges(large):
        yield "The judge's most likely digit counts (scoring: greedy): it has no probabilities."


def _lacks(small: Model, large: Model, policy: str) -> str:
    """What the pair lacks for a policy; empty if nothing."""
    if policy in VERIFYING:
        if not one_vocabulary(small.vocabulary, large.vocabulary):
            return "they need one vocabulary"
        if isinstance(large, ServedModel) and not large.able.scores:
            return "the large model's server gives no log-probabilities of a prompt"
    reads = policy in READING_DRAFTS
    if reads and isinstance(small, ServedModel) and not small.able.reads_logprobs:
        return "the small model's server gives no log-probabilities of every streamed token"
    return ""


def _judges(large: Model) -> bool:
    """Whether a judge's digits have probabilities."""
    return isinstance(large, ModelSize) or large.able.top > 0


def _billions(model: ModelSize) -> str:
    return f"{model.parameters / 1e9:.3g} billion"
