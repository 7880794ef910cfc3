"""Tools that only make sense in a checkout; they are not part of the installed package."""
