"""Whether the driver holds limits on a card, and what follows for containers and for what is offered."""

from pathlib import Path
from types import SimpleNamespace

from pytest_mock import MockerFixture

from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.gpus.api.memory_limits import HELD, Enforcement, LimitSupport
from deviceplugin.gpus.simulated.memory_limits import LIMIT_ENV, REQUEST_ENV, LimitBehaviour
from tests.limits_world import UID, LimitsWorld, world
from tests.waiting import until

__all__ = ["world"]


def with_mps(world: LimitsWorld) -> MemoryEnforcement:
    """The same where MPS answers for every card."""
    clients = SimpleNamespace(get_enforcement=lambda _: Enforcement.MPS, can_limit=lambda *_: True)
    return MemoryEnforcement(world.supports, clients)  # type: ignore[arg-type]


async def test_a_driver_that_cannot_is_left_alone(world: LimitsWorld) -> None:
    world.driver.say(LimitSupport(False, "driver 580 has no call", "driver 615"))
    await world.start()
    world.give(UID, "main", range(5))
    world.container("a")
    await world.settle()
    assert (world.driver.sets, world.enforcement.get_enforcement("c0")) == ([], Enforcement.ACCOUNTED)
    assert world.supports.container_envs({"c0": 5}) == {}
    assert with_mps(world).get_enforcement("c0") is Enforcement.MPS


async def test_off_asks_the_driver_for_nothing(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, mode="off")
    world.give(UID, "main", range(5))
    world.container("a")
    await world.start()
    await world.settle()
    await world.end()
    assert (world.driver.reads, world.enforcement.get_enforcement("c0")) == (0, Enforcement.ACCOUNTED)
    assert str(world.supports.get_support("c0")) == "--memory-limits off"
    assert world.supports.container_envs({"c0": 5}) == {}


async def test_the_toolkits_variables_are_those_of_the_smallest_share(world: LimitsWorld) -> None:
    assert world.supports.container_envs({"c0": 5}) == {}
    await world.start()
    envs = world.supports.container_envs({"c0": 5, "c1": 4})
    assert envs == {REQUEST_ENV: "0", LIMIT_ENV: "4"}
    assert len(envs) == 2
    assert world.supports.container_envs({}) == {}


async def test_require_offers_only_cards_that_are_held(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, mode="require")
    assert not any(world.answers.list_devices().values())
    assert world.account.ledger.used() == (8, 8)
    world.driver.say(LimitSupport(False, "driver 580 has no call", "driver 615"))
    await world.start()
    assert not any(world.answers.list_devices().values())
    assert world.answers.explain_unavailable("c0::0") == (
        "--memory-limits require, and driver 580 has no call; it takes driver 615"
    )
    world.driver.say(LimitSupport(True))
    await world.supports.probe_cards()
    assert all(world.answers.list_devices().values())
    assert world.account.ledger.used() == (0, 0)
    # Health and limits are two things.
    world.account.ledger.set_healthy("c0", False)
    await world.supports.probe_cards()
    assert world.account.ledger.used() == (8, 0)
    await world.end()


async def test_a_question_that_fails_is_no_and_is_asked_again(
    world: LimitsWorld, mocker: MockerFixture
) -> None:
    bad = mocker.patch.object(world.driver, "support", side_effect=[RuntimeError("boom"), HELD])
    await world.supports.start()
    assert [world.supports.get_support(card).can_limit for card in ("c0", "c1")] == [False, True]
    assert "RuntimeError: boom" in world.supports.get_support("c0").reason
    mocker.stop(bad)
    await world.supports.probe_cards()
    assert world.supports.get_support("c0").can_limit


async def test_held_is_taken_back_where_the_driver_refuses_for_want_of_a_right(world: LimitsWorld) -> None:
    """A card that says "held" has its containers limited: MPS takes them where it is there."""
    world.enforcement = with_mps(world)
    await world.start()
    assert world.enforcement.get_enforcement("c0") is Enforcement.DRIVER
    world.driver.behaviour = LimitBehaviour(set="no_permission")
    changes: list[Enforcement] = []
    world.account.subscribe(lambda: changes.append(world.enforcement.get_enforcement("c0")))
    world.give(UID, "main", range(5))
    world.container("a")
    world.name("a", "main")
    await until(lambda: world.supports.get_support("c0").is_forbidden)
    assert changes[-1] is Enforcement.MPS
    assert world.enforcement.get_enforcement("c1") is Enforcement.DRIVER  # as far as anybody knows
    assert world.supports.container_envs({"c0": 5}) == {}
    ((uid, container, problem),) = world.told
    assert (uid, container) == (UID, "main")
    assert "Insufficient Permissions" in problem
    (limit,) = world.enforcer.list_limits()
    assert not limit.is_in_force
    # Nobody tries again and again what cannot be had.
    sets = len(world.driver.sets)
    world.container("b")
    await world.settle()
    assert len(world.driver.sets) == sets


async def test_require_takes_cards_back_where_the_right_is_missing(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, mode="require")
    await world.start()
    assert world.account.ledger.used() == (0, 0)
    world.driver.behaviour = LimitBehaviour(set="no_permission")
    world.give(UID, "main", range(3))
    world.container("a")
    await until(lambda: world.account.ledger.used() == (8, 0))
    assert "Insufficient Permissions" in str(world.answers.explain_unavailable("c0::0"))
    await world.end()
