"""Errors that tell a user what to change."""


class MisconfigurationException(Exception):
    """The user's settings or code cannot work as given; the message says what was given and what to do."""


class InvalidValueError(MisconfigurationException, ValueError):
    """A value of a kind that cannot be used; a ValueError, too, as code written for Lightning expects."""
