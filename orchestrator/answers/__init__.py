"""Answers compared by value, in the order of a comparison.

- `text`: finds the answer in a text.
- `spelling`: replaces equal spellings of LaTeX and Unicode by one.
- `numbers`: parses numbers, with a unit or a currency.
- `values`: parses the other values: sequences, words, expressions.
- `equality`: compares two values.
"""
