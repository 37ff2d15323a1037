"""The checkpoints that come with the service, and how the name of a model becomes a folder.

MODEL_CARD.md says what the models can do; `deploy/lab/pair` made them.

- `checkpoints`: where a checkpoint lies: in a folder, on the Hugging Face hub, or in this room.
- `remarks`: what is said of the embedded pair, which is a toy.
"""
