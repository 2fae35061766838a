"""Answers held to the OpenAPI description of who gave them."""

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from jsonschema import Draft202012Validator

from protocol.openapi import Json

ODD = (
    "",
    "0",
    "1",
    "-1",
    "007",
    "1.5",
    "x",
    "true",
    "False",
    "2026-05-04",
    "2026-13-99T00:00",
    "9" * 20,
    "é",
    "\0",
    "٣",
)
_JSON = "application/json"
RAW = ("%", "%ff", "%c3%28", "+", "a&b", "%00", "[]", "=")


class Described:
    """A description, and what was seen of it. An object may have no member that it does not name."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.seen: set[tuple[str, str, int]] = set()
        self._strict = copy.deepcopy(document)
        _close(self._strict)
        patterns = [(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)), path) for path in document["paths"]]
        self._paths = sorted(patterns, key=lambda entry: entry[0].count("[^/]+"))  # the literal ones first

    @property
    def operations(self) -> Iterator[tuple[str, str, Json]]:
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                yield method.upper(), path, operation

    def check(
        self, method: str, path: str, status: int, media_type: str, body: bytes, asked: bytes | None = None
    ) -> None:
        """Fails unless this may be answered, and `asked`, where it succeeded as a body of JSON, may be asked."""
        template = next(known for pattern, known in self._paths if re.fullmatch(pattern, path.partition("?")[0]))
        if asked and status < 300:
            self._valid(json.loads(asked), "paths", template, method.lower(), "requestBody", "content", _JSON, "schema")
        answers = self._strict["paths"][template][method.lower()]["responses"]
        assert str(status) in answers, f"{method} {path} is answered {status}: {body[:300]!r}"
        self.seen.add((method, template, status))
        content = answers[str(status)].get("content")
        if content is None:
            assert body == b"", f"{method} {path} {status}: a body"
            return
        assert media_type in content, f"{method} {path} {status}: {media_type}"
        if media_type == _JSON:
            where = ("paths", template, method.lower(), "responses", str(status), "content", media_type, "schema")
            self._valid(json.loads(body), *where)

    def _valid(self, value: Any, *where: str) -> None:
        pointer = "/".join(part.replace("~", "~0").replace("/", "~1") for part in where)
        faults = list(Draft202012Validator({**self._strict, "$ref": f"#/{pointer}"}).iter_errors(value))
        assert not faults, f"{' '.join(where)}: {faults[0]}"

    @property
    def unseen(self) -> set[tuple[str, str]]:
        """Operations that have not been seen to succeed."""
        done = {(method, path) for method, path, status in self.seen if status < 300}
        return {(method, path) for method, path, _ in self.operations} - done


def filled(path: str) -> str:
    """A path whose segments name nothing."""
    return re.sub(r"{\w+}", "0", path)


def odd_queries(operation: Json, seed: int, count: int) -> Iterator[str]:
    """Queries that hold this operation's parameters and others, with values good and bad."""
    chance = random.Random(seed)
    names = [entry["name"] for entry in operation["parameters"] if entry["in"] == "query"] + ["other"]
    for _ in range(count):
        chosen = chance.choices(names, k=chance.randint(1, 3))
        values = (quote(chance.choice(ODD)) if chance.random() < 0.7 else chance.choice(RAW) for _ in chosen)
        yield "&".join(f"{name}={value}" for name, value in zip(chosen, values, strict=True))


def _close(schema: Any) -> None:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)
        for inner in schema.values():
            _close(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _close(inner)
