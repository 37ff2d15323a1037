"""The families of word problems: totals, remainders and equal shares."""

from __future__ import annotations

from deploy.evaluation.builtin.sketch import GeneratedProblem, Sketch, operands, sorted_key
from deploy.evaluation.builtin.stories import Story
from deploy.evaluation.builtin.wordings import WORDS


def _have(sketch: Sketch, story: Story) -> tuple[str, str, int]:
    """Return the beginning of a story: a sentence, its expression, its value."""
    if story.scene or sketch.rng.random() < 0.5:
        a = sketch.between((3, 20), (10, 60), (10, 99), (50, 299), (100, 799))
        return story.part("has", a=a), str(a), a
    a, b = _groups(sketch)
    value = sketch.work(max(a, b), "*", min(a, b), noun=story.things["i"])
    return story.part("groups", a=a, b=b), sorted_key("*", (a, b)), value


def _groups(sketch: Sketch) -> tuple[int, int]:
    """Draw a number of containers, and a number of things in each."""
    a = sketch.between((2, 5), (2, 9), (3, 9), (4, 12), (5, 24))
    return a, sketch.between((2, 9), (3, 15), (5, 30), (8, 60), (11, 99))


def _change(sketch: Sketch, story: Story, key: str, value: int, sign: str) -> tuple[str, str, int]:
    n = sketch.between((1, 9), (2, 30), (3, 60), (5, 150), (5, 300))
    n = min(n, value - 1) if sign == "-" else n
    sentence = story.part("gain" if sign == "+" else "loss", a=n)
    return sentence, f"{key}{sign}{n}", sketch.work(value, sign, n, noun=story.things["i"])


def _word_changes(sketch: Sketch, last: str, family: str, ending: str) -> GeneratedProblem | None:
    story = Story(sketch, scenes=True)
    sentence, key, value = _have(sketch, story)
    sentences = [sentence]
    more = sketch.rng.randint(0, (0, 0, 1, 2, 2)[sketch.level - 1])
    for sign in [sketch.rng.choice("+-") for _ in range(more)] + [last]:
        if value < 2:
            return None
        sentence, key, value = _change(sketch, story, key, value, sign)
        sentences.append(sentence)
    return sketch.problem(family, story.joined([*sentences, story.part(ending)]), key)


def word_total(sketch: Sketch) -> GeneratedProblem | None:
    kind = sketch.rng.choice(
        (_word_gained, _word_gained, _word_gained, _two_people, _two_people, _more_than, _more_one,
         _times, _prices, _prices, _loose, _three, _three)
    )  # fmt: skip
    return kind(sketch)


def _word_gained(sketch: Sketch) -> GeneratedProblem | None:
    return _word_changes(sketch, "+", "word-total", "now")


def _two_people(sketch: Sketch) -> GeneratedProblem | None:
    story = Story(sketch)
    a, b = operands(sketch, "+")
    sketch.work(a, "+", b, noun=story.things["i"])
    return story.problem("word-total", "two_people", sorted_key("+", (a, b)), a=a, b=b)


def _more_than(sketch: Sketch) -> GeneratedProblem | None:
    a = sketch.between((2, 12), (5, 40), (10, 99), (20, 299), (50, 499))
    b = sketch.between((1, 9), (2, 20), (5, 60), (10, 99), (20, 299))
    sketch.work(a, "+", sketch.work(a, "+", b))
    return Story(sketch).problem("word-total", "more_than", f"{a}+({a}+{b})", a=a, b=b)


def _more_one(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the other person's number, given how many more it is."""
    a, b = operands(sketch, "+")
    sketch.work(a, "+", b)
    return Story(sketch).problem("word-total", "more_one", sorted_key("+", (a, b)), a=a, b=b)


def _times(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for a multiple of a number, or for both together."""
    a = sketch.between((2, 9), (3, 20), (5, 60), (11, 99), (21, 199))
    b = sketch.rng.randint(2, 9)
    value = sketch.work(a, "*", b) if a > 9 or a >= b else sketch.work(b, "*", a)
    if sketch.rng.random() < 0.5:
        question = Story(sketch).filled(WORDS["times_one"], a=a, b=b)
        return sketch.problem("word-total", question, sorted_key("*", (a, b)))
    sketch.work(a, "+", value)
    return Story(sketch).problem("word-total", "times_both", f"{a}+{a}*{b}", a=a, b=b)


def _prices(sketch: Sketch) -> GeneratedProblem | None:
    a, b = sketch.between((2, 5), (2, 9), (2, 9), (3, 12), (3, 19)), sketch.rng.randint(2, 9)
    p, r = sketch.between((2, 5), (2, 9), (3, 20), (3, 40), (5, 60)), sketch.rng.randint(2, 9)
    first = sketch.work(max(a, p), "*", min(a, p))
    sketch.work(first, "+", sketch.work(b, "*", r))
    return Story(sketch).problem("word-total", "price", f"{a}*{p}+{b}*{r}", a=a, b=b, p=p, r=r)


def _loose(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the things in full boxes and some more."""
    story = Story(sketch)
    a, b = _groups(sketch)
    d = sketch.between((1, 9), (2, 20), (2, 40), (3, 99), (5, 199))
    sketch.work(sketch.work(max(a, b), "*", min(a, b)), "+", d, noun=story.things["i"])
    return story.problem("word-total", "loose", f"{sorted_key('*', (a, b))}+{d}", a=a, b=b, d=d)


def _three(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the sum of three numbers."""
    a, b, d = (sketch.between((2, 12), (3, 40), (5, 99), (10, 299), (20, 499)) for _ in range(3))
    story = Story(sketch)
    sketch.work(sketch.work(a, "+", b), "+", d, noun=story.things["i"])
    return story.problem("word-total", "three", sorted_key("+", (a, b, d)), a=a, b=b, d=d)


def word_left(sketch: Sketch) -> GeneratedProblem | None:
    kind = sketch.rng.choice(
        (_word_lost, _word_lost, _word_lost, _word_lost, _word_lost, _word_lost, _word_taken,
         _word_two_losses, _word_two_losses, _change_back, _fewer_one, _used_daily)
    )  # fmt: skip
    return kind(sketch)


def _word_lost(sketch: Sketch) -> GeneratedProblem | None:
    return _word_changes(sketch, "-", "word-left", "left")


def _change_back(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the money that remains after a purchase."""
    b = sketch.between((2, 5), (2, 9), (2, 9), (3, 12), (3, 19))
    p = sketch.between((2, 5), (2, 9), (3, 20), (3, 40), (5, 60))
    cost = sketch.work(max(b, p), "*", min(b, p))
    bills = [bill for bill in (10, 20, 50, 100, 200, 500, 1000) if bill > cost]
    a = bills[0] if bills and sketch.rng.random() < 0.5 else cost + sketch.rng.randint(1, 99)
    sketch.work(a, "-", cost)
    return Story(sketch).problem(
        "word-left", "change", f"{a}-{sorted_key('*', (b, p))}", a=a, b=b, p=p
    )


def _used_daily(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the rest after the same amount was taken several times."""
    b, d = _groups(sketch)
    used = sketch.work(max(b, d), "*", min(b, d))
    a = used + sketch.between((1, 20), (1, 60), (2, 99), (5, 300), (5, 500))
    sketch.work(a, "-", used)
    return Story(sketch).problem(
        "word-left", "used_daily", f"{a}-{sorted_key('*', (b, d))}", a=a, b=b, d=d
    )


def _fewer_one(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the other person's number, or for the difference."""
    a, b = operands(sketch, "-")
    sketch.work(a, "-", b)
    return Story(sketch).problem("word-left", "fewer_one", f"{a}-{b}", a=a, b=b)


def _word_taken(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the rest of a whole: "40 seats, 27 are taken"."""
    story = Story(sketch)
    a, b = operands(sketch, "-")
    sketch.work(a, "-", b, noun=story.things["i"])
    return story.problem("word-left", "taken", f"{a}-{b}", a=a, b=b)


def _word_two_losses(sketch: Sketch) -> GeneratedProblem | None:
    """Ask for the rest after two losses in one sentence."""
    story = Story(sketch, mine=False)
    sentence, key, value = _have(sketch, story)
    if value < 4:
        return None
    b = min(sketch.between((1, 6), (2, 20), (3, 40), (5, 90), (5, 200)), value - 2)
    c = min(sketch.between((1, 6), (2, 20), (3, 40), (5, 90), (5, 200)), value - b - 1)
    rest = sketch.work(value, "-", b, noun=story.things["i"])
    sketch.work(rest, "-", c, noun=story.things["i"])
    sentences = [sentence, story.filled(WORDS["two_losses"], b=b, d=c), story.part("left")]
    return sketch.problem("word-left", story.joined(sentences), f"{key}-{b}-{c}")


def word_share(sketch: Sketch) -> GeneratedProblem | None:
    story, dice = Story(sketch), sketch.rng.random()
    if dice < 0.2:
        a, b = operands(sketch, "*")
        sketch.work(max(a, b), "*", min(a, b))
        return story.problem("word-share", "rate", sorted_key("*", (a, b)), a=a, b=b)
    if dice < 0.35:
        a, b = operands(sketch, "/")
        sketch.work(a, "/", b)
        return story.problem("word-share", "groups_needed", f"{a}/{b}", a=a, b=b)
    if dice < 0.55:
        return _two_then_shared(sketch, story)
    sentence, key, value = _have(sketch, story)
    sentences = [sentence]
    for _ in range(sketch.rng.randint(0, (0, 1, 1, 2, 2)[sketch.level - 1])):
        if value < 2:
            return None
        sentence, key, value = _change(sketch, story, key, value, sketch.rng.choice("+-"))
        sentences.append(sentence)
    divisors = [k for k in range(2, 13) if value % k == 0 and value > k]
    if not divisors:
        return None
    k = sketch.rng.choice(divisors)
    sketch.work(value, "/", k, noun=story.things["i"])
    return sketch.problem(
        "word-share", story.joined([*sentences, story.part("share", k=k)]), f"({key})/{k}"
    )


def _two_then_shared(sketch: Sketch, story: Story) -> GeneratedProblem | None:
    """Ask for equal shares of a sum or a difference."""
    k = sketch.between((2, 5), (2, 9), (2, 9), (2, 12), (3, 15))
    whole = k * sketch.between((2, 9), (2, 15), (5, 30), (5, 60), (11, 99))
    b = sketch.between((1, 9), (2, 30), (3, 60), (5, 150), (5, 300))
    together = sketch.rng.random() < 0.5
    if together and whole - b < 2:
        return None
    a = whole - b if together else whole + b
    sign = "+" if together else "-"
    sketch.work(sketch.work(a, sign, b), "/", k, noun=story.things["i"])
    wording = "together_shared" if together else "rest_shared"
    return story.problem("word-share", wording, f"({a}{sign}{b})/{k}", a=a, b=b, k=k)
