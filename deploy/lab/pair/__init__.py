"""The recipe that made the embedded pair and its drafters, frozen (`baton lab train`).

Training documents:

- `vocabulary`: the tokenizer and its chat template.
- `steps`: steps of a chain of thought, planted mistakes, the exact checker.
- `mistakes`: wrong steps and reflections that a model wrote, and their file.
- `words`: words that no question has.
- `noise`: what people wrap around a question.
- `batches`: a training document, and batches of documents.
- `documents`: problems turned into documents.

The pair:

- `llama`: the training twin of Hugging Face's Llama.
- `muon`: Muon and AdamW over one flat vector.
- `progress`: length and schedule of a run.
- `trainer`: the training loop.
- `harvest`: the small model's mistakes.

The drafters:

- `generation`: prompts decoded to the end, without an engine.
- `chains`: the large model's answers.
- `drafters`: the loop that trains a drafter on them.
- `kangaroo`: the adapter after the first layers.
- `features`: the feature drafters.

- `recipe`: the stages of `baton lab train`.
- `publishing`: copies checkpoints to the folder that `embedded:` names.
- `shared_forms`: writes the list of held-out calculations that training has in another notation.
"""
