"""A closed union of event models over an open world: known types become models, all others pass through untouched."""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from protocol.errors import InvalidEvent


class Model(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, or the data of one. Its tag is the event's type.

    `extra` holds the members that the model does not name, as they were: providers add what they like.
    """

    extra: dict[str, Any] = {}


class Unknown(Struct, frozen=True):
    """An event of a type that the vocabulary does not have, whole."""

    type: str
    members: dict[str, Any]
    """All members but `type`."""


M = TypeVar("M", bound=Model)


class Vocabulary(Generic[M]):
    """The types of one document, and their models. `types` keeps the order of the document."""

    def __init__(self, *models: type[M]) -> None:
        self._models: Final = {str(model.__struct_config__.tag): model for model in models}
        self._fields: Final = {
            name: frozenset(model.__struct_encode_fields__) - {"extra"} for name, model in self._models.items()
        }
        self.types: Final = tuple(self._models)

    def __contains__(self, type: object) -> bool:
        return isinstance(type, str) and type in self._models

    def read(self, event: Mapping[str, Any]) -> M | Unknown:
        """Read one event: JSON values, a string `type`.

        Raises InvalidEvent, which says where, for an event without a type and for a known type whose members are not
        of the types that its document gives them.
        """
        type = event.get("type")
        if not isinstance(type, str) or not type:
            raise InvalidEvent("$.type: an event needs a type, a string that is not empty")
        return self.read_as(type, {name: value for name, value in event.items() if name != "type"})

    def read_as(self, type: str, members: Mapping[str, Any]) -> M | Unknown:
        """Read the members of an event whose type is kept elsewhere. Raises InvalidEvent."""
        model = self._models.get(type)
        if model is None:
            return Unknown(type, dict(members))
        fields = self._fields[type]
        try:
            found = msgspec.convert({name: value for name, value in members.items() if name in fields}, model)
        except msgspec.ValidationError as error:
            raise InvalidEvent(f"{type}: {error}") from None
        extra = {name: value for name, value in members.items() if name not in fields}
        return msgspec.structs.replace(found, extra=extra) if extra else found

    def write(self, event: M | Unknown) -> dict[str, Any]:
        """The event as JSON values: what `read` was given, whatever the order of its members."""
        if isinstance(event, Unknown):
            return {"type": event.type, **event.members}
        return {"type": self.type_of(event), **self.members_of(event)}

    @staticmethod
    def type_of(event: M | Unknown) -> str:
        """The event's type."""
        return event.type if isinstance(event, Unknown) else str(event.__struct_config__.tag)

    @staticmethod
    def members_of(event: Model) -> dict[str, Any]:
        """The members of an event of this vocabulary, its type aside."""
        members: dict[str, Any] = msgspec.to_builtins(event)
        members.pop("type", None)
        extra = members.pop("extra", {})
        return {**members, **extra}
