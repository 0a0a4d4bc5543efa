"""Reading `devices` where every device has an index: 2, -1, "0,1", [0, 1]."""

from gpulayer.fabric.utilities.exceptions import MisconfigurationException


def read_indices(devices: int | str | list[int], available: int, kind: str) -> list[int]:
    """The indices that `devices` names among `available` devices.

    Args:
        devices: a count, -1 for all, indices as a list or as text with commas.
        available: how many devices there are.
        kind: what to call one in an error.

    Raises:
        MisconfigurationException: an index twice, one that is not there, or none at all.
    """
    given, everything = devices, list(range(available))
    try:
        if isinstance(devices, str):
            text = devices.strip()
            devices = [int(part) for part in text.split(",") if part.strip()] if "," in text else int(text)
        if isinstance(devices, bool):
            raise ValueError
        elif isinstance(devices, int):
            indices = everything if devices == -1 else list(range(devices))
        else:
            indices = [int(index) for index in devices]
    except (TypeError, ValueError):
        raise MisconfigurationException(
            f"`devices={given!r}` is not understood: give a number, -1 for all, or indices such as [0, 1] or '0,1'."
        ) from None
    if not indices:
        raise MisconfigurationException(f"`devices={given!r}` names no device; {available} {kind} device(s) are here.")
    if len(set(indices)) != len(indices):
        raise MisconfigurationException(f"`devices={given!r}` names a device twice.")
    missing = [index for index in indices if index not in everything]
    if missing:
        raise MisconfigurationException(
            f"`devices={given!r}` asks for {kind} device(s) {missing}, but this machine has {available}: "
            f"{everything}. Use `devices='auto'` for what there is."
        )
    return indices
