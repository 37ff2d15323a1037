"""Training of the embedded pair and its drafters: problem generator and recipe. Offline."""
