"""Training of the embedded pair and its drafters. Offline: nothing that serves imports it.

Generated problems, whose words lie in `words/*.yaml`:

- `word_file`: reads and checks one file of word lists.
- `wordings`: the word lists by name.
- `sketch`: one problem under construction; facts, numbers of a level's size.
- `calculations`: the families arithmetic, chain, remainder, sum and operate.
- `stories`: the people, things and sentences of a word problem.
- `unknowns`: the families of equations.
- `word_problems`: the families in the form of stories.
- `shared_forms`: which held-out calculations training has in another writing.
- `problems`: all families; streams of problems, and the part each belongs to.

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
- `recipe`: the stages of `baton train`.
"""
