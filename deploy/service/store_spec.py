"""The `store` of a deployment file: its url and settings."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from orchestrator.errors import ConfigError
from orchestrator.validation import StrictModel, refusing
from workers.remote.address import checked

if TYPE_CHECKING:
    from orchestrator.state.redis import RedisStore

PASSWORD = "BATON_REDIS_PASSWORD"  # noqa: S105 (a name, no password)


class StoreSpec(StrictModel):
    """The store that replicas share; a deployment file may give the url alone."""

    url: str = "memory"  # memory, redis://... or rediss://...
    password_env: str | None = None  # with redis: the variable with its password; None: `PASSWORD`
    # With redis: how every key begins.
    prefix: str = Field(default="baton:", pattern=r"^[A-Za-z0-9._:{}-]{1,64}$")
    trace_ttl_s: float = Field(default=86_400.0, gt=0)  # how long traces are kept

    @model_validator(mode="after")
    def _known(self) -> StoreSpec:
        if self.url == "memory":
            if self.password_env is not None:
                raise ValueError("password_env: goes with redis://")
            return self
        scheme = self.url.partition("://")[0]
        if scheme not in ("redis", "rediss"):
            raise ValueError(f"must be `memory` or redis://..., not {scheme!r}")
        with refusing():
            self.redis("")
            path = checked(self.url).path.strip("/")
        if path and not re.fullmatch(r"[0-9]+", path):
            raise ValueError("url: expected redis://HOST:PORT/DATABASE, the database a number")
        return self

    def redis(self, password: str | None) -> RedisStore:
        """Return a client of the server, not connected yet."""
        from orchestrator.state.redis import RedisStore  # slow, and not needed for a memory store

        return RedisStore(self.url, password=password, prefix=self.prefix)

    def password(self) -> str | None:
        """Return the server's password; None if the environment has none.

        Raises:
            ConfigError: `password_env` names a variable that is empty.
        """
        if self.password_env is None:
            return os.environ.get(PASSWORD)
        password = os.environ.get(self.password_env, "")
        if not password:
            raise ConfigError(
                f"store: password_env names ${self.password_env}, which is empty: "
                "set it to the password"
            )
        return password
