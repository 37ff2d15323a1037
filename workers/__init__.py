"""Workers know tokens and models, and no policy."""
