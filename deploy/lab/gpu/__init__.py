"""One GPU measured in a quarter of an hour (`make gpu`).

- `plan`: the stages, their limits, and the file that keeps their rows.
- `stages`: what each stage measures.
- `models`: checkpoints with random weights in the shapes of real ones, and their workers.
- `played_worker`: recorded dialogues over real engines.
- `report`: the table, the cost file and the page.
"""
