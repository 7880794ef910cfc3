"""Other ways to do the same, one a file."""
