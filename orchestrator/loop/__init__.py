"""The step loop: a policy asks, workers answer, accepted text streams out.

In reading order:

- `policy`: what a policy is; its docstring teaches the protocol by an example.
- `actions`: what a policy may ask for, each action typed by its answer.
- `solve`: THE STEP LOOP.
- `policy_runner`: its pure half, shared with replay: the policy's generator and its transcript.
- `budget`: what a request may spend, and how a segment ends a phase.
- `events`: what a running request tells whoever watches it.
"""
