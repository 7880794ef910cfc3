"""Random trouble, to find out what breaks: ``python -m tools.fuzz``, from the root of a checkout."""
