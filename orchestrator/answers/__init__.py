"""Answers compared by value, in the order of a comparison.

- `text`: finds the answer in a text.
- `spelling`: replaces equal spellings of LaTeX and Unicode by one.
- `numbers`: parses numbers, with units, in any base, times and dates.
- `values`: parses the other values: sequences, words, expressions.
- `equality`: compares two values.
"""
