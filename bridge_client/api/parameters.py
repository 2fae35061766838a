"""The parameters of a query: read once, by name, and refused by name."""

from collections.abc import Collection, Sequence

from bridge_client.api import ApiError


def read(pairs: Sequence[tuple[str, str]], names: Collection[str]) -> dict[str, str]:
    """Those that are ours; others are passed over. Raises ApiError (400) for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in names:
            if name in found:
                raise bad(name, "is given twice")
            found[name] = value
    return found


def name_of(found: dict[str, str], name: str) -> str | None:
    """A parameter that names something, None if it is left out. Raises ApiError (400) when it is empty."""
    if found.get(name) == "":
        raise bad(name, "is empty; leave it out, or name one")
    return found.get(name)


def whole(found: dict[str, str], name: str, default: int, *, digits: int = 9) -> int:
    """A parameter of at most so many digits. Raises ApiError (400)."""
    text = found.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise bad(name, f"is {text[:40]!r}; it is a whole number of at most {digits} digits")
    return int(text)


def bad(name: str, why: str) -> ApiError:
    """What is wrong with a parameter, as an answer."""
    return ApiError(400, "bad_parameter", f"{name} {why}", parameter=name)
