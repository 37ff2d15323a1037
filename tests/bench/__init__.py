"""`make bench`: what Baton costs beside its peers, in one run on the same checkpoint.

- `run`: the command: rows one after the other, each kept, and the table.
- `rows`: what each row measures.
- `servers`: servers of one model, Baton's and its peers'.
- `load`: many streamed requests at once.
- `llama_server`: llama.cpp's server as a process of its own.
"""
