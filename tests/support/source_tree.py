"""A tree of Python sources, parsed: which modules there are, and what each imports."""

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("protocol", "bridge_server", "bridge_client")


class Import(NamedTuple):
    """One imported module, by its full dotted name."""

    line: int
    module: str


class Module(NamedTuple):
    """One source file: its dotted name (a package goes by its own name, without `__init__`) and its syntax tree."""

    name: str
    path: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]

    def at(self, line: int, text: str) -> str:
        return f"{self.path}:{line}: {text}"


class Tree:
    """The Python files below a root: those of the packages parsed, all of them listed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[Path]:
        tops = (*PACKAGES, "tests", "deploy", "benchmarks")
        return sorted(
            path for top in tops for path in (self.root / top).rglob("*.py") if "node_modules" not in path.parts
        )

    @cached_property
    def modules(self) -> dict[str, Module]:
        found = {}
        for path in self.files:
            relative = path.relative_to(self.root)
            if relative.parts[0] not in PACKAGES:
                continue
            parts = relative.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, relative.as_posix(), ast.parse(path.read_text(), filename=str(path)))
        return found

    def imports(self, module: Module) -> Iterator[Import]:
        """What `module` imports, at any depth; `from a import b` counts as `a`, and as `a.b` if that is a module."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(node.lineno, alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    is_package = module.path.endswith("__init__.py")
                    up = module.name.split(".")[: len(module.name.split(".")) - node.level + is_package]
                    base = ".".join([*up, *filter(None, [node.module])])
                yield Import(node.lineno, base)
                for alias in node.names:
                    if f"{base}.{alias.name}" in self.modules or (base == "urllib" and alias.name == "request"):
                        yield Import(node.lineno, f"{base}.{alias.name}")

    def pairs(self) -> Iterator[tuple[Module, Import]]:
        for module in self.modules.values():
            for imported in self.imports(module):
                yield module, imported


def within(name: str, *prefixes: str) -> bool:
    """Whether a dotted name is one of these modules or lies in one. `x.*` means only what lies in x."""
    return any(
        name.startswith(prefix[:-1]) if prefix.endswith(".*") else name == prefix or name.startswith(f"{prefix}.")
        for prefix in prefixes
    )


def dotted(node: ast.AST) -> str:
    """`a.b.c` as written, or nothing if the expression is not a plain chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""
