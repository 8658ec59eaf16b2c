"""How a child begins: exactly as ordered, at a gate until it is recorded, or one clear reason why not."""

import json
import os
import resource
from pathlib import Path

import attrs
import pytest
import trio
from tests.support.keeper_box import PATIENCE_S, keeper_box, order, python, texts

from kite_launcher.core.keeper_orders import Forked, Spawned, SpawnFailed
from kite_launcher.edge.keeper_link import KeeperGone

TELL = """
import json, os, resource, sys
paths = {n: f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")}
print(json.dumps({
  "fds": {n: os.readlink(path) for n, path in paths.items() if os.path.exists(path)},
  "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0),
  "nice": os.getpriority(os.PRIO_PROCESS, 0), "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
  "core": resource.getrlimit(resource.RLIMIT_CORE), "leads": os.getsid(0) == os.getpid(), "stdin": sys.stdin.read(),
}))
"""


async def test_a_child_is_exactly_what_was_ordered(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    env = {"A": "b", "É": "\udcff", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "1"}
    given, other = os.pipe()
    asked = python("x", TELL, cwd=str(tmp_path / "sub"), env=env, fds={9: given, 4: given}, umask=0o27, nice=5)
    asked = attrs.evolve(
        asked, argv=(*asked.argv, "a b", "é\n", "$HOME", "\udce9"), rlimits={"nofile": (99, 100), "core": (0, 0)}
    )
    async with keeper_box(tmp_path) as box:
        assert isinstance(await box.link.spawn(asked), Spawned)
        assert (await box.ended("x")).status == 0
    os.close(given)
    os.close(other)
    told = json.loads(texts(tmp_path, "x")[0])
    fds = told.pop("fds")
    assert fds.pop("0") == "/dev/null"
    assert set(fds) == {"1", "2", "4", "9"}
    assert told == {
        "argv": ["a b", "é\n", "$HOME", "\udce9"],
        "env": env,
        "cwd": str(tmp_path / "sub"),
        "umask": 0o27,
        "nice": 5,
        "nofile": [99, 100],
        "core": [0, 0],
        "leads": True,
        "stdin": "",
    }


async def test_a_child_gets_the_limits_of_before_the_keeper_helped_itself(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await box.link.spawn(order("x", "sh", "-c", "ulimit -Sn"))
        await box.ended("x")
    assert texts(tmp_path, "x") == [str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]


async def test_stdin_as_a_pipe_neither_ends_nor_dies_with_the_keeper(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await box.link.spawn(order("x", "sh", "-c", "cat; echo over", stdin="pipe"))
        await box.kill()
        await box.start()
        await trio.sleep(0.1)
        assert [record.name for record in await box.link.kept_records()] == ["x"]
        assert texts(tmp_path, "x") == []


@pytest.mark.parametrize(
    ("argv", "more", "number", "words"),
    [
        (("no-such-program",), {}, 2, "no-such-program: No such file"),
        (("/etc/passwd",), {}, 13, "/etc/passwd: Permission denied"),
        (("true",), {"cwd": "/nowhere"}, 2, "cwd /nowhere: No such file"),
        (("true",), {"user": "no-such-user"}, 0, "no user 'no-such-user'"),
        (("true",), {"rlimits": {"nofile": (10, 5)}}, 22, "limit nofile"),
        (("true", "a\0b"), {}, 22, "exec"),
        (("true",), {"fds": {1: 0}}, 22, "descriptor 1"),
    ],
)
async def test_what_cannot_run_is_one_clear_reason(
    tmp_path: Path, argv: tuple[str, ...], more: dict[str, object], number: int, words: str
) -> None:
    async with keeper_box(tmp_path) as box:
        failed = await box.link.spawn(order("x", *argv, **more))
        assert isinstance(failed, SpawnFailed)
        assert failed.errno == number
        assert words in failed.why
        assert await box.link.kept_records() == []
        assert isinstance(await box.link.spawn(order("y", "true")), Spawned)
        await box.ended("y")


async def test_too_long_an_argument_list_is_told_with_its_size(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        one = await box.link.spawn(order("x", "true", "a" * 200_000))
        many = await box.link.spawn(order("x", "true", env={f"V{n}": "e" * 100_000 for n in range(90)}))
    assert isinstance(one, SpawnFailed)
    assert "argument list too long" in one.why
    assert "200001 bytes" in one.why
    assert isinstance(many, SpawnFailed)
    assert many.errno == 7
    assert "9000" in many.why


async def test_nothing_of_the_program_runs_before_its_record_stands(tmp_path: Path) -> None:
    seen: list[Forked] = []
    async with keeper_box(tmp_path) as box:

        async def record(forked: Forked) -> None:
            seen.append(forked)
            await trio.sleep(0.1)
            assert not (tmp_path / "ran").exists()
            assert os.getpgid(forked.pid) != forked.pid

        spawned = await box.link.spawn(order("x", "touch", str(tmp_path / "ran")), record)
        await box.ended("x")
    assert (tmp_path / "ran").exists()
    assert isinstance(spawned, Spawned)
    assert (seen[0].pid, seen[0].start_ticks) == (spawned.pid, spawned.start_ticks)


async def test_a_record_that_fails_ends_the_child_unrun(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:

        async def refuse(forked: Forked) -> None:
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await box.link.spawn(order("x", "touch", str(tmp_path / "ran")), refuse)
        with trio.fail_after(PATIENCE_S):
            while await box.link.kept_records():
                await trio.sleep(0.01)
        await box.link.spawn(order("y", "true"))
        await box.ended("y")
    assert not (tmp_path / "ran").exists()


async def test_a_launcher_that_dies_before_the_record_leaves_nothing_running(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        forked: list[Forked] = []

        async def die(at_gate: Forked) -> None:
            forked.append(at_gate)
            await box.link.close(quit_keeper=False)

        with pytest.raises(KeeperGone):
            await box.link.spawn(order("x", "touch", str(tmp_path / "ran")), die)
        await box.until("the child at its gate is gone", lambda: not Path(f"/proc/{forked[0].pid}").exists())
        assert not (tmp_path / "ran").exists()


async def test_runs_are_counted_over_keepers(tmp_path: Path) -> None:
    runs: list[int] = []
    for _ in range(2):
        async with keeper_box(tmp_path) as box:
            for _ in range(2):
                spawned = await box.link.spawn(order("x", "echo", "hi"))
                assert isinstance(spawned, Spawned)
                runs.append(spawned.run)
                await box.ended("x")
    assert runs == [1, 2, 3, 4]


async def test_many_start_at_once(tmp_path: Path) -> None:
    results: list[Spawned | SpawnFailed] = []
    async with keeper_box(tmp_path) as box, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            results.append(await box.link.spawn(order(f"m{number}", "sh", "-c", f"echo {number}; exit {number}")))

        for number in range(60):
            nursery.start_soon(one, number)
        with trio.fail_after(PATIENCE_S):
            ends = {}
            for _ in range(60):
                exited = await box.link.exits.receive()
                ends[exited.name] = exited.status
    assert ends == {f"m{number}": number << 8 for number in range(60)}
    assert all(texts(tmp_path, f"m{number}") == [str(number)] for number in range(60))


async def test_a_keeper_whose_wire_was_lost_is_taken_as_it_is(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await box.link.spawn(order("x", "sleep", "600"))
        first = box.link.pid
        await box.link.close(quit_keeper=False)
        await box.start()
        assert box.link.pid == first
        assert [record.name for record in await box.link.kept_records()] == ["x"]


async def test_a_keeper_without_descriptors_refuses_and_goes_on(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        _, hard = resource.prlimit(box.link.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(box.link.pid, resource.RLIMIT_NOFILE, (40, hard))
        results = [await box.link.spawn(order(f"x{number}", "sleep", "600")) for number in range(20)]
        refused = [result for result in results if isinstance(result, SpawnFailed)]
        assert 0 < len(refused) < 20
        assert all(result.errno == 24 or "descriptor" in result.why for result in refused)
        assert not box.link.gone.is_set()
        assert len(await box.link.kept_records()) == 20 - len(refused)
