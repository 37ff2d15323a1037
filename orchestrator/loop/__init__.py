"""The step loop: a policy yields actions, workers carry them out, accepted text streams out.

In reading order:

- `policy`: what a policy is; its docstring teaches the protocol by an example.
- `actions`: what a policy may yield, each action typed by its result.
- `request`: what the loop answers.
- `solve`: THE STEP LOOP.
- `executor`: carries actions out: the calls to workers, the deadline.
- `policy_runner`: runs a policy without I/O: its generator, the transcript, the events.
- `budget`: what a request may spend, and how an accepted segment ends a phase.
- `answer_room`: room for an answer at the end of a thought that a cap cuts.
- `spending`: what the large model may cost in the thought, whatever the policy.
- `stop_strings`: a caller's stop strings in an answer of several segments.
- `events`: what a running request reports.
- `timeline`: when each worker did what, and which calls made a step.
- `accumulator`: what the events amount to: text, steps, totals; read by all who report.
"""
