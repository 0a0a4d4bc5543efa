"""Errors that tell a user what to change."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager


class MisconfigurationException(Exception):
    """The user's settings or code cannot work as given; the message says what was given and what to do."""


class InvalidValueError(MisconfigurationException, ValueError):
    """A value of a kind that cannot be used; a ValueError, too, as code written for Lightning expects."""


# Of what is to be saved, not of where: an object that cannot be pickled, or settings that are wrong.
NOT_OF_THE_STORE = (pickle.PicklingError, AttributeError, TypeError, RecursionError, MisconfigurationException)


class SaveError(OSError):
    """A checkpoint could not be stored: a full disk, no permission, a server that is away. The one before is intact."""


@contextmanager
def storing(what: str) -> Iterator[None]:
    """An error of the store in this block becomes a SaveError; one of the object that is saved stays what it is.

    Args:
        what: what the block does, for the message, such as "save 'last.ckpt'".
    """
    try:
        yield
    except (SaveError, *NOT_OF_THE_STORE):
        raise
    except Exception as error:
        failure = SaveError(f"could not {what}: {type(error).__name__}: {error}")
        failure.errno = getattr(error, "errno", None)
        raise failure from error
