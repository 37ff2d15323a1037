"""Token-level methods side by side: `baton bench-decode`."""
