"""What an app is told by a hub whose home is away: nothing that it could take for a place to go on from."""

import asyncio

import pytest

from tests.support.virtual_time import virtual_time
from tests.support.wire_bench import Bench


@pytest.mark.parametrize(("epoch", "since"), [("another", 114), ("E", 3)])
def test_rule_3_hub_reset_names_no_place(epoch: str, since: int) -> None:
    """The hub holds events of another store, or fewer of the same: an app that went on from its head would lose some
    or see some again. Found by the simulation."""

    @virtual_time
    async def told() -> None:
        bench = Bench()
        home = bench.home()
        home.joins("E", 2)
        home.events(1, 2)
        home.drop()
        await asyncio.sleep(11)
        app = bench.app()
        reply = app.join({"since_id": str(since), "epoch": epoch})
        assert reply["gap"] == {"reason": "hub_reset", "from_id": str(since), "resume_after": None}
        assert (reply["epoch"], reply["head_id"]) == (None, None)

    told()
