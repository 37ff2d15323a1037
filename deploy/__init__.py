"""The composition root: imports everything, imported by nobody."""
