"""The generated math problems of `builtin:NAME`. Their words are in `words/*.yaml`.

- `wordings`: the word lists by name.
- `sketch`: one problem under construction: facts, and numbers of a level's size.
- `calculations`: the families arithmetic, chain, remainder, sum and operate.
- `stories`: the people, things and sentences of a word problem.
- `unknowns`: the families of equations.
- `word_problems`: the families of word problems.
- `shared_forms`: held-out calculations that training has in another notation.
- `problems`: all families; streams of problems, and the part each belongs to.
"""
