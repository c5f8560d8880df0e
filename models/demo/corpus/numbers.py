"""Counting, sums and comparisons of whole numbers from 0 to 99."""

from random import Random

from demo.corpus.example import Example, single

LONGEST_COUNT = 12


def counting(rng: Random) -> Example:
    """Up or down from one number to another, at most LONGEST_COUNT numbers."""
    top = rng.choice((20, 99))
    low = rng.randint(0, top - 2)
    high = min(99, low + rng.randint(2, LONGEST_COUNT - 1))
    if rng.random() < 0.3:
        wording = rng.choice(("Count down from {} to {}.", "Count backwards from {} to {}."))
        return single("counting", wording.format(high, low), _listed(range(high, low - 1, -1)))
    wording = rng.choice(
        ("Count from {} to {}.", "Count up from {} to {}.", "Please count from {} to {}.")
    )
    return single("counting", wording.format(low, high), _listed(range(low, high + 1)))


def _listed(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."


def sums(rng: Random) -> Example:
    """Addition as taught: ones, then tens with the carry, then the whole line."""
    a, b = operands(rng)
    wording = rng.choice(("What is {} + {}?", "What is {} plus {}?", "Add {} and {}.", "{} + {} ="))
    return single("sums", wording.format(a, b), f"{working(a, b)} {a} + {b} = {a + b}.")


def operands(rng: Random) -> tuple[int, int]:
    """Two numbers, one in five of them a single digit."""
    return tuple(rng.randint(0, 9 if rng.random() < 0.2 else 99) for _ in range(2))  # type: ignore[return-value]


def working(a: int, b: int) -> str:
    """The two steps of a written addition, as the model is taught to say them."""
    ones = a % 10 + b % 10
    carry = " + 1" if ones > 9 else ""
    tens = a // 10 + b // 10 + ones // 10
    return f"Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10}{carry} = {tens}."


def comparisons(rng: Random) -> Example:
    """Which of two different numbers is larger or smaller."""
    a, b = rng.sample(range(100), 2)
    if rng.random() < 0.3:
        b = a // 10 * 10 + rng.choice([d for d in range(10) if d != a % 10])
    word, first = rng.choice((("larger", max(a, b)), ("smaller", min(a, b))))
    wording = rng.choice(("Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?"))
    answer = f"{first} is {word} than {a + b - first}."
    return single("comparisons", wording.format(w=word, a=a, b=b), answer)
