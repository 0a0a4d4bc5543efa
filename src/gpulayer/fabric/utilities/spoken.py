"""Times and rates as a person says them, in log lines."""


def duration(seconds: float) -> str:
    """0.4 s, 42 s, 3 min 05 s, 2 h 14 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def speed(rate: float) -> str:
    """Batches a second, or seconds a batch."""
    if rate >= 100:
        return f"{rate:.0f} batches/s"
    return f"{rate:.3g} batches/s" if rate >= 1 else f"{1 / rate:.3g} s/batch" if rate > 0 else "0 batches/s"
