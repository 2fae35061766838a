"""How a Phoenix client digests presence: rules 63 to 68 written down a second time, for servers to be held to.

A state is a map from key to `{"metas": [...]}`. Nothing passed in is changed.
"""

from copy import deepcopy
from typing import Any

State = dict[str, dict[str, list[dict[str, Any]]]]


def _refs(metas: list[dict[str, Any]]) -> set[str]:
    return {meta["phx_ref"] for meta in metas}


def sync_diff(state: State, diff: dict[str, State]) -> tuple[State, list[str], list[str]]:
    """The state after a diff; the keys that were not there before it, and those that are gone after it.

    Joins come first, so that a key which is in both is never absent.
    """
    state, came, went = deepcopy(state), [], []
    for key, presence in deepcopy(diff["joins"]).items():
        if key not in state:
            came.append(key)
        kept = [
            meta for meta in state.get(key, {"metas": []})["metas"] if meta["phx_ref"] not in _refs(presence["metas"])
        ]
        state[key] = {"metas": kept + presence["metas"]}
    for key, presence in diff["leaves"].items():
        if key in state:
            left = [meta for meta in state[key]["metas"] if meta["phx_ref"] not in _refs(presence["metas"])]
            state[key] = {"metas": left}
            if not left:
                del state[key]
                went.append(key)
    return state, came, went


def sync_state(state: State, new: State) -> tuple[State, list[str], list[str]]:
    """The state after a `presence_state`: what differs by `phx_ref` is a diff."""

    def without(one: State, other: State) -> State:
        rest = {
            key: [
                meta
                for meta in presence["metas"]
                if meta["phx_ref"] not in _refs(other.get(key, {"metas": []})["metas"])
            ]
            for key, presence in one.items()
        }
        return {key: {"metas": metas} for key, metas in rest.items() if metas}

    return sync_diff(state, {"joins": without(new, state), "leaves": without(state, new)})


def of(messages: list[Any], state: State | None = None) -> State:
    """What a client has after messages with `event` and `payload`; others than presence are passed over.

    Fails on a diff without a state before it.
    """
    for message in messages:
        if message.event == "presence_state":
            state = sync_state(state or {}, message.payload)[0]
        elif message.event == "presence_diff":
            assert state is not None, "a diff came before the state"
            state = sync_diff(state, message.payload)[0]
    return state or {}
