"""`make bench`: what Baton costs beside its peers, in one run on the same checkpoint.

- `run`: the command: rows one after the other, each kept, and the table.
- `rows`: what each row measures.
- `servers`: servers of one model, Baton's and its peers'.
- `bare_serve`: Ray Serve without Baton.
- `load`: many streamed requests at once.
- `llama_cpp`: llama.cpp's server over a checkpoint, written as a GGUF file.
- `llama_server`: that server as a process.
- `llama_cpp_speed`: plain decoding in 8 bits beside llama.cpp's.
"""
