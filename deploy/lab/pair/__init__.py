"""The recipe that made the embedded pair and its drafters, frozen (`baton lab train`).

Training documents:

- `vocabulary`: the tokenizer and its chat template.
- `words`: words that no question has.
- `steps`: steps of a chain of thought, planted mistakes, the exact checker.
- `mistakes`: wrong steps and reflections that a model wrote, and their file.
- `noise`: what people wrap around a question.
- `documents`: problems turned into documents.

Models:

- `batches`: a training document, and batches of documents.
- `training`: the loop, its schedule, and the pair's models.
- `harvest`: the small model's mistakes.
- `generation`: prompts decoded to the end, without an engine.
- `chains`: the large model's answers, which drafters learn from.
- `kangaroo`: the adapter after the first layers.
- `features`: the feature drafters.
- `recipe`: the stages of `baton lab train`.
"""
