"""The step loop: a policy yields actions, workers carry them out, accepted text streams out.

In reading order:

- `policy`: what a policy is; its docstring teaches the protocol by an example.
- `actions`: what a policy may yield, each action typed by its result.
- `request`: the request that the loop answers.
- `solve`: THE STEP LOOP.
- `executor`: carries actions out: the calls to workers.
- `policy_runner`: runs a policy without I/O: its generator, the transcript, the events.
- `budget`: a request's caps on tokens, and how an accepted segment ends a phase.
- `ending`: how a thought ends before its cap: loops, a soft budget.
- `answer_room`: room for an answer at the end of a thought that a cap cuts.
- `spending`: any policy's caps on the large model in the thought.
- `stop_strings`: a caller's stop strings in an answer of several segments.
- `events`: the events of a running request.
- `accumulator`: sums the events up as text, steps, calls and totals, for everything that reports.
"""
