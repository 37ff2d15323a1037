"""Policies measured: evaluated side by side, calibrated, replayed.

In reading order:

- `builtin`: the generated problems.
- `problems`: problem sets by name: files, generated ones, the external evaluation set.
- `gym`: problems of reasoning-gym.
- `gym_answers`: its kinds that have several right answers, or want one in a certain form.
- `candidates`: the policies of an evaluation, with parameters, under a label.
- `clients`: two clients with one interface: workers in this process, a service over HTTP.
- `evaluate`: candidates take turns on problems; answers are timed and graded.
- `grading`: whether an answer is right: numbers at once, algebra in a separate process.
- `json_lines`: files of settings and rows that a later run adds to.
- `evaluation_log`: an evaluation's rows in a file, from which an interrupted run resumes.
- `intervals`: means, quantiles, confidence intervals.
- `summary`: makes rows from results, one for each policy and budget.
- `tables`: rows in the terminal.
- `plots`: Pareto plots of accuracy over time and over tokens.
- `calls`: a key for each call of a worker, and a row for its answer.
- `call_log`: answers by their call, in a file.
- `cached_worker`: a worker that answers repeated calls from a cache.
- `recording`: a request's recording, written and read, and its replay with no model.
- `judging`: whether a judge's scores separate good answers of a pair.
- `threshold_search`: the value of a threshold that meets a target, by bisection.
- `calibrator`: both for a pair of models and any questions.
- `gate_learning`: a gate learned from recordings: what a rewrite of each draft would have changed.
- `concurrency`: a limited number of requests at once.
- `service_client`: one call of a running service; its keys and errors.
"""
