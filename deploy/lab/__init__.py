"""The laboratory: what measures Baton, and what made the embedded pair. It is not in the wheel.

- `commands`: the commands under `baton lab`.
- `bench`: token-level methods and calls of workers, side by side.
- `peers`: Baton beside transformers, vLLM and llama.cpp (`make bench`).
- `pair`: the recipe that trained the embedded pair and its drafters.
- `torture`: attacks on a running service.
- `call_costs`: what calls cost on another pair of models (`costs/*.yaml`).
- `reenact`: recorded dialogues through the step loop, at such costs.
- `gpu`: one GPU in a quarter of an hour (`make gpu`).
- `load`: requests a second by policy.
- `tally`: what policies did over several recorded evaluations, each beside a coin.
- `fetch`: downloads the pretrained pair (`make real-pair`).
- `stock`: a checkpoint as transformers' own model.
- `processes`: servers and commands that are started and ended.
- `clients`: many clients at once.
- `site`: the pages as a site (`make docs`).

Beside them: `experiments/` (what `baton lab run` takes), `costs/`, `results/` (dated tables).
"""
