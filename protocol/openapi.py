"""An OpenAPI 3.1 description, put together from a table of operations and the msgspec types of what they take and give.

Each side keeps a table of its own beside its routes, serves what `document` makes of it, and proves in its tests that
table and router are the same. Schemas and their descriptions are msgspec's, of the types that routes decode and encode.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

Json = dict[str, Any]


class Media(NamedTuple):
    """A body that is no plain `application/json`."""

    media_type: str
    type: Any


class Parameter(NamedTuple):
    """A parameter of the query or a header; `type` has its bounds and its default."""

    name: str
    says: str
    type: Any = str
    place: Literal["query", "header"] = "query"


class Problem(NamedTuple):
    """An answer other than success. `shape`: `{"error": {"code", "message", …}}`, or `{"reason", "message"?, …}`.

    `again`: with the header Retry-After.
    """

    status: int
    code: str
    meaning: str = ""
    shape: Literal["error", "reason"] = "error"
    again: bool = False


class Operation(NamedTuple):
    """A method and a path, `{name}` standing for one segment, and all that may be said there.

    `answers` are the bodies by status, None for no body. `body` is optional if everything in it is. `security` names
    schemes, each of which suffices, `""` none at all; without any, no credential is asked.
    """

    method: str
    path: str
    says: str
    answers: Mapping[int, Any]
    problems: Iterable[Problem] = ()
    body: Any = None
    parameters: Sequence[Parameter] = ()
    security: Collection[str] = ()
    details: str = ""


_REF: Final = "#/components/schemas/{name}"
_AGAIN: Final = {"description": "seconds after which to come back", "schema": {"type": "integer", "minimum": 0}}


def document(info: Json, operations: Sequence[Operation], schemes: Json, segments: Mapping[str, Any]) -> Json:
    """The description. `segments` are the types of what stands for `{name}` in paths, `schemes` those of security.

    Raises KeyError for a segment without a type, TypeError for a type that has no schema.
    """
    types = [media.type for one in operations for value in (*one.answers.values(), one.body) for media in _media(value)]
    types += [parameter.type for one in operations for parameter in one.parameters] + list(segments.values())
    found, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = {id(type): schema for type, schema in zip(types, found, strict=True)}
    paths: dict[str, Json] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas, segments)
    made = {
        "openapi": "3.1.0",
        "info": info,
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": schemes},
    }
    described: Json = _portable(made)
    return described


def _operation(one: Operation, schemas: Mapping[int, Json], segments: Mapping[str, Any]) -> Json:
    shown: Json = {
        "operationId": "_".join(re.findall(r"\w+", f"{one.method.lower()} {one.path}")),
        "summary": one.says,
        "security": [{name: []} if name else {} for name in one.security],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": schemas[id(segments[name])]}
            for name in re.findall(r"{(\w+)}", one.path)
        ]
        + [
            {"name": name, "in": place, "description": says, "schema": schemas[id(type)]}
            for name, says, type, place in one.parameters
        ],
        "responses": _responses(one, schemas),
    }
    if one.details:
        shown["description"] = one.details
    if body := _media(one.body):
        needed = any(
            isinstance(media.type, type)
            and issubclass(media.type, msgspec.Struct)
            and any(field.required for field in msgspec.structs.fields(media.type))
            for media in body
        )
        shown["requestBody"] = {"required": needed, "content": _content(body, schemas)}
    return shown


def _responses(one: Operation, schemas: Mapping[int, Json]) -> Json:
    refused: dict[int, list[Problem]] = {}
    for problem in one.problems:
        refused.setdefault(problem.status, []).append(problem)
    shown: Json = {}
    for status in sorted({*one.answers, *refused}):
        problems = refused.get(status, [])
        texts = [f"`{said.code}`: {said.meaning}" if said.meaning else f"`{said.code}`" for said in problems]
        response: Json = {"description": "; ".join(texts) or ("done" if status < 400 else "not now")}
        media = _content(_media(one.answers.get(status)), schemas)
        shapes = [_refusal(problems, shape) for shape in ("error", "reason") if any(p.shape == shape for p in problems)]
        if shapes:
            shapes += [given["schema"] for given in media.values()]
            media = {"application/json": {"schema": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}}
        if media:
            response["content"] = media
        if any(problem.again for problem in problems):
            response["headers"] = {"Retry-After": _AGAIN}
        shown[str(status)] = response
    return shown


def _refusal(problems: Iterable[Problem], shape: str) -> Json:
    codes = sorted({problem.code for problem in problems if problem.shape == shape})
    name = "code" if shape == "error" else "reason"
    members = {
        "type": "object",
        "properties": {name: {"enum": codes}, "message": {"type": "string"}},
        "required": ["code", "message"] if shape == "error" else ["reason"],
        "additionalProperties": True,  # some say more
    }
    return {"type": "object", "properties": {"error": members}, "required": ["error"]} if shape == "error" else members


def _media(value: Any) -> Sequence[Media]:
    if value is None:
        return ()
    if isinstance(value, Media):
        return (value,)
    return value if isinstance(value, list) else (Media("application/json", value),)


def _content(bodies: Iterable[Media], schemas: Mapping[int, Json]) -> Json:
    return {media.media_type: {"schema": schemas[id(media.type)]} for media in bodies}


def _portable(value: Any) -> Any:
    """`value` with Python's end of text in patterns as JSON Schema writes it."""
    if isinstance(value, dict):
        return {
            name: inner.replace(r"\Z", "$") if name == "pattern" and isinstance(inner, str) else _portable(inner)
            for name, inner in value.items()
        }
    return [_portable(inner) for inner in value] if isinstance(value, list | tuple) else value
