"""What only makes sense in a checkout: it is not part of the package that is installed."""
