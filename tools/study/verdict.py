"""What differences between seeds say about a claim."""

from tools.spread import Spread, summarize

__all__ = ["compare", "judge"]


def compare(better: dict[int, float], worse: dict[int, float]) -> Spread | None:
    """By how much the first error is smaller, seed by seed: runs of one seed see the images in the same order.

    Example:
        >>> str(compare({0: 10.0, 1: 11.0}, {0: 12.0, 1: 12.5, 2: 13.0}))
        '1.75 ± 0.25'
    """
    seeds = sorted(better.keys() & worse.keys())
    return summarize([worse[seed] - better[seed] for seed in seeds]) if seeds else None


# Differences in standard errors that chance exceeds in one of twenty cases, by the number of seeds (Student's t).
_LIMITS = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}


def judge(gain: Spread | None, seeds: int) -> str:
    """What a difference says about the claim that it is positive.

    Below two standard errors, nothing. With a few seeds, chance alone gives two of them too often for a decision, so
    that up to the limit of Student's t a difference only leans.

    Example:
        >>> judge(Spread(1.0, 0.2, 3), 3), judge(Spread(-1.0, 0.2, 3), 3), judge(Spread(1.0, 0.6, 3), 3)
        ('holds', 'fails', 'undecided')
        >>> judge(Spread(1.0, 0.3, 3), 3), judge(Spread(-1.0, 0.3, 3), 3), judge(Spread(0.0, 0.0, 3), 3)
        ('leans to yes', 'leans to no', 'undecided')
        >>> judge(Spread(1.0, 0.2, 2), 3)
        'open (2 of 3 seeds)'
    """
    count = gain.count if gain else 0
    if gain is None or gain.error is None or count < seeds:
        return f"open ({count} of {seeds} seeds)"
    if gain.mean == 0 or abs(gain.mean) < 2 * gain.error:
        return "undecided"
    if abs(gain.mean) < _LIMITS.get(count, 2.3) * gain.error:
        return "leans to yes" if gain.mean > 0 else "leans to no"
    return "holds" if gain.mean > 0 else "fails"
