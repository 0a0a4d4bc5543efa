"""Errors that tell a user what to change."""


class MisconfigurationException(Exception):
    """The user's settings or code cannot work as given; the message says what was given and what to do."""
