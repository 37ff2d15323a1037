"""Who answers a command's questions: a running service, or both models in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from deploy.evaluation.candidates import Candidate, policy_of
from deploy.evaluation.clients import Client, HttpClient, LocalClient, RequestOptions
from deploy.launch.deployment_file import DEFAULT_FILE, load_args
from deploy.launch.workers import close, load_pair, want_engines
from deploy.service.config import Args
from deploy.service.worker_spec import Speculation, Workers
from orchestrator.errors import ConfigError, InvalidRequest


@dataclass(frozen=True, slots=True)
class Pair:
    """A service by its `url`, else the two models of a deployment file.

    In this process `speculation` is the large worker's method; `default_speculation` replaces the
    file's, but is ignored if the large worker is a server.
    """

    url: str | None = None
    config: Path | None = None
    speculation: str | None = None
    default_speculation: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None and self.config is not None:
            raise InvalidRequest(
                "--url (or $BATON_URL) names a service, --config models to run here: leave one out"
            )

    def read(self, candidates: Sequence[Candidate]) -> tuple[Args, Speculation | None]:
        """Return the deployment file's args, and what its large worker decodes with; None if its
        server decides.

        Raises:
            ConfigError, InvalidRequest: the file, a policy, a parameter or the method is wrong, or
                an engine is not installed.
        """
        args = load_args(self.config or DEFAULT_FILE)
        for candidate in candidates:
            policy_of(args, candidate)
        try:
            want_engines(args.workers)
        except ConfigError as error:
            raise ConfigError(f"{error}; or name a running service: --url ADDRESS") from None
        return args, large_speculation(args.workers, self.speculation, self.default_speculation)

    @asynccontextmanager
    async def client(
        self,
        options: RequestOptions,
        candidates: Sequence[Candidate],
        *,
        recording: bool = False,
        fresh: bool = False,
    ) -> AsyncGenerator[Client, None]:
        """A client of it; a wrong policy or parameter is an error before a model is loaded.

        `recording` and `fresh` are those of `LocalClient`; a service decides about its own caches.
        """
        if self.url is not None:
            async with aclosing(HttpClient(self.url, options)) as remote:
                yield remote
            return
        args, chosen = self.read(candidates)
        workers = args.workers
        if chosen is not None:  # one method alone: no request here can name another
            large = workers.large.model_copy(update={"speculation": chosen})
            workers = workers.model_copy(update={"large": large})
        pair = load_pair(workers)
        try:
            changed = args.model_copy(update={"workers": workers})
            yield LocalClient(changed, pair, options, recording=recording, fresh=fresh)
        finally:
            await close(pair.values())


def large_speculation(
    workers: Workers, text: str | None, default: str | None = None
) -> Speculation | None:
    """What the large worker decodes with; None if its server decides.

    Args:
        text: NAME or NAME:KEY=VALUE; what it leaves out is as in the file, if the file offers
            the method, else the method's own default, and the small model drafts.
        default: instead of the file's method, if there is no text.

    Raises:
        ConfigError, InvalidRequest: no such method or parameter, or no model that drafts.
    """
    if workers.large.url is not None:
        if text is not None:
            raise ConfigError("--speculation: the large worker's server decides; leave it out")
        return None
    chosen = Candidate.parse(text or default or workers.large.speculation.method)
    offered = {one.method: one.params for one in workers.large.speculation.offered}
    drafter = _drafter(chosen, workers)
    params = {**offered.get(chosen.policy, {}), **chosen.params}
    if drafter is not None and drafter not in params:
        if workers.small.url is not None:
            raise ConfigError(
                f"--speculation {chosen.policy} needs a draft model, and the small is a server"
            )
        params[drafter] = workers.small.model
    return Speculation(method=chosen.policy, params=params)


def _drafter(chosen: Candidate, workers: Workers) -> str | None:
    """Return the parameter of a method that names its draft model; None if none does."""
    method = chosen.policy
    if workers.large.runs_vllm:
        return "model" if method == "draft_model" else None
    from workers.speculation import METHODS

    if method not in METHODS:
        raise InvalidRequest(f"no speculation method {method!r}; there are {', '.join(METHODS)}")
    _, _, *known = signature(METHODS[method]).parameters.values()  # target and loader come first
    names = [one.name for one in known]
    others = any(one.kind is one.VAR_KEYWORD for one in known)  # another method's
    for key in () if others else chosen.params.keys() - names:
        raise InvalidRequest(
            f"--speculation {chosen.label}: {method} has no parameter {key!r}; "
            f"there are {', '.join(names) or 'none'}"
        )
    return "draft" if "draft" in names else None
