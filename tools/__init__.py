"""Tools for the repository itself: the site of the documentation, and a report on readability."""
