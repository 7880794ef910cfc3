"""Other ways to do the same, one per file. If a competitor needs a package, its ``PACKAGE`` names it."""
