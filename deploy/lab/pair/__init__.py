"""The recipe that trained the embedded pair and its drafters (`baton lab train`).

Training documents:

- `vocabulary`: the tokenizer and its chat template.
- `steps`: steps of a chain of thought, planted mistakes, the exact checker.
- `mistakes`: wrong steps and reflections that a model wrote, and their file.
- `noise`: what people wrap around a question.
- `batches`: a training document, and batches of them.
- `documents`: problems turned into documents.

The pair:

- `llama`: the training twin of Hugging Face's Llama.
- `muon`: Muon and AdamW over one flat vector, shared between processes.
- `progress`: tokens, steps and seconds of a run, its schedule, its saved state.
- `trainer`: the training loop, in one or several processes.
- `harvest`: the small model's own mistakes.

The drafters:

- `generation`: prompts decoded to the end, without an engine.
- `chains`: the large model's own answers.
- `fit`: the loop that trains a drafter on them.
- `kangaroo`: the adapter behind the first layers.
- `features`: the feature drafters.

Figures and stages:

- `cost`: milliseconds a decoded token.
- `measure`: what the pair can do, on problems it never saw.
- `calibration`: the judge's likelihood curve and default scoring.
- `publishing`: copies checkpoints to where `embedded:` finds them.
- `shared_forms`: writes the list of held-out calculations that training has in another notation.
- `recipe`: the stages of `baton lab train`.
"""
