"""One file per subcommand of `baton`."""
