"""Recorded dialogues through the real loop and policies, over virtual workers.

- `clock`: an event loop in virtual time.
- `engine`: batches of rows, and passes that share a device.
- `dialogues`: recordings, and their answers by call.
- `virtual_worker`: a worker that answers from the record, in the time of an engine.
- `rows`: policies side by side, and beside what was measured.

`dialogues.jsonl.xz` holds 48 questions under five policies, as the pretrained pair answered them.
"""
