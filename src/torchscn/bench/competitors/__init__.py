"""Other ways to do the same, one per file. What a competitor needs installed is its ``PACKAGE``."""
