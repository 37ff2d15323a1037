"""Everything Baton raises on purpose.

BatonError
├── InvalidRequest            the caller's fault: HTTP 400, names the parameter
│   ├── ContextLengthExceeded prompt longer than the smaller of the two contexts
│   └── UnknownPolicy         no such policy or model name: HTTP 404
├── WorkerError               a worker's fault
│   ├── WorkerUnavailable     cannot be reached or died: worth a retry elsewhere
│   ├── Contradiction         what it sent contradicts itself
│   ├── Misconfigured         its server has no such model or path, or refuses the key: HTTP 503
│   ├── Overloaded            no room now: HTTP 503 with Retry-After
│   ├── Spent                 a policy's cap forbids to ask the large model again
│   └── Unsupported           this worker lacks a capability, which is named: HTTP 400
├── DeadlineExceeded          the request's time is up: HTTP 503
├── StoreError                a store's fault, or a value in it that cannot be used
│   ├── StoreUnavailable      cannot be reached, refuses to write, or cannot be understood: HTTP 503
│   ├── Unusable              holds a value that this release cannot use, which is named
│   └── Conflict              another change came first: HTTP 409
└── ConfigError               a deployment file or a checkpoint that cannot be used
"""

from __future__ import annotations

import traceback
from functools import partial


class BatonError(Exception):
    """Root of the tree; its message is one line that a user can act on."""


class InvalidRequest(BatonError):
    """A request that cannot be carried out as it is.

    `param` is the name of the offending parameter, `code` OpenAI's short error code.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions travel between processes, and pickle by default forgets keyword arguments.
        return partial(type(self), param=self.param, code=self.code), (self.message,)


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit a worker's context."""


class UnknownPolicy(InvalidRequest):
    """No policy or model of that name."""


class WorkerError(BatonError):
    """A worker failed; thrown into the policy, which may fall back.

    `worker` is the name of the one that was called, once that is known.
    """

    worker: str | None = None


class WorkerUnavailable(WorkerError):
    """The worker cannot be reached or died; another replica may serve the same call."""


class Contradiction(WorkerError):
    """The worker's answer contradicts itself or its tokenizer: discard all of it."""


class Misconfigured(WorkerError):
    """The worker's server refuses a call, until it or the deployment is changed."""


class Overloaded(WorkerError):
    """The worker has no room for another sequence now.

    `retry_after_s`: seconds after which the worker asks for a retry, if it says so.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Spent(WorkerError):
    """The request has spent its cap on the large model, which is not called again."""


class Unsupported(WorkerError):
    """The worker lacks a capability that the policy needs.

    Clients see the message, so it names the capability, but no host, no file and no words of a
    server. `policy` is the policy's name, once that is known.
    """

    policy: str | None = None


class DeadlineExceeded(BatonError):
    """The request's time is up."""


class StoreError(BatonError):
    """The store failed, or holds a value that cannot be used."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, does not answer in time, or refuses."""


class Unusable(StoreError):
    """The store holds a value that this release cannot use; the message names it and says why."""


class Conflict(StoreError):
    """It has changed since the client read it; read it again, then retry."""


class ConfigError(BatonError):
    """A deployment file, policy document or checkpoint that cannot be used."""


def describe(error: BaseException) -> str:
    """Return an error for the log: the message of Baton's own, the type and traceback of others.

    The message of another error is left out, because it may quote a prompt.
    """
    if isinstance(error, BatonError):
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
