"""`make bench`: what Baton costs beside its peers, in one run on the same checkpoint.

- `run`: the command: rows one after the other, each kept, and the table.
- `rows`: what each row measures.
- `servers`: servers of one model, Baton's and its peers'.
- `bare_serve`: Ray Serve without Baton.
- `serve_call`: a call to a replica beside Serve's own bare call.
- `llama_cpp`: llama.cpp's server over a checkpoint, written as a GGUF file.
"""
