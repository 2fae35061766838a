"""What a hub holds: its objects by class, and the size of every table that can be reached from it.

Nothing has to be listed: a table that is added tomorrow is counted tomorrow.
"""

import gc
import types
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OURS = ("protocol", "bridge_server")
_TABLES = (dict, list, set, deque)
# What belongs to the program, not to a connection: the walk does not go through it.
_OUTSIDE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType, types.CodeType)

Census = Counter[str]


def census(*roots: object) -> Census:
    """Objects of our classes in this whole process, and the entries of all tables that the roots lead to."""
    gc.collect()
    counted: Census = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if _is_ours(kind):
            counted[f"{kind.__module__}.{kind.__qualname__}"] += 1
    for owner, table in _tables(roots):
        counted[f"entries of {owner}"] += len(table)
    return +counted


def _is_ours(kind: type) -> bool:
    module = kind.__module__
    return isinstance(module, str) and module.partition(".")[0] in OURS


def _tables(roots: tuple[object, ...]) -> Iterator[tuple[str, Any]]:
    """Every table reached through objects of ours, by the class that holds it."""
    seen = {id(root) for root in roots}
    todo = [("root", root) for root in roots]
    while todo:
        owner, thing = todo.pop()
        if isinstance(thing, _TABLES):
            yield owner, thing
        elif _is_ours(type(thing)):
            owner = type(thing).__qualname__
        elif not isinstance(thing, tuple | types.MethodType | types.CellType):
            continue
        for inner in gc.get_referents(thing):
            if id(inner) not in seen and not isinstance(inner, _OUTSIDE):
                seen.add(id(inner))
                todo.append((owner, inner))


def resident() -> int | None:
    """Bytes of memory this process occupies now; None where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
