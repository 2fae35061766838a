"""Modules that are only executed when they are used: what a command does not need must not cost it a second."""

import importlib.util
import sys
from typing import Any


def lazily(name: str) -> Any:
    """The module `name`, executed when one of its names is used for the first time, which may then raise ImportError.

    Use it from one thread until then. Type checkers see the import that stands beside it under TYPE_CHECKING.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
