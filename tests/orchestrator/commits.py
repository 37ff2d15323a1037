"""Changes of the configuration, planned on the store's state of the moment."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.state.store import Commit, Store


async def commit(
    store: Store,
    pointers: Mapping[str, bytes] | None = None,
    create: Mapping[str, bytes] | None = None,
    audit: bytes = b"",
) -> str:
    """Carry out a commit; return the new revision."""
    return await store.commit(
        (await store.state()).revision, Commit(audit, pointers or {}, create or {})
    )
