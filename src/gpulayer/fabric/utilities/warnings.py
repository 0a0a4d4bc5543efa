"""Categories of warnings."""


class PossibleUserWarning(UserWarning):
    """Something that is probably, but not certainly, a mistake."""
