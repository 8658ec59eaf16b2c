"""The stream plane to the letter: paths, numbers, resets, answers, access. Cases W-60, W-61, W-65, X-09, X-21, X-41."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.stream_box import StreamBox, heard, publish

SMALL = {"small": {"ring": 5}}


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("last", "reset", "replayed"),
    [(9, False, []), (4, False, [5, 6, 7, 8, 9]), (3, True, []), (10, True, []), (0, True, []), (None, False, [])],
)
async def test_a_subscriber_starts_where_it_asked_or_is_told(
    tmp_path: Path, last: int | None, reset: bool, replayed: list[int]
) -> None:
    async with StreamBox(tmp_path, SMALL) as box:
        pub = await box.pub("small", ack=1)
        assert await publish(pub, *[f"m{n}" for n in range(1, 10)]) == list(range(1, 10))
        sub = await box.sub("small", **({} if last is None else {"last": last}))
        first = await heard(sub)
        assert first == ([{"reset": True, "seq": 9}] if reset else [{"seq": n, "data": f"m{n}"} for n in replayed])
        await publish(pub, "live")
        assert await heard(sub, 1) == [{"seq": 10, "data": "live"}]


async def test_an_empty_stream_has_nothing_to_replay(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box:
        sub = await box.sub("fresh", last=0)
        assert await heard(sub) == []
        pub = await box.pub("fresh", ack=1)
        assert await publish(pub, "a") == [1]
        assert await heard(sub, 1) == [{"seq": 1, "data": "a"}]


async def test_the_frame_is_exactly_seq_and_data(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box:
        sub = await box.sub()
        pub = await box.pub()
        texts = ["", 'quote " slash \\ tab \t nul \0', "\u20ac \U0001f600 \u2028", '{"seq":99}', " blank ", "null"]
        for text in texts:
            await pub.send(text)
        frames = [await sub.raw() for _ in texts]
        assert [json.loads(frame) for frame in frames] == [{"seq": n, "data": text} for n, text in enumerate(texts, 1)]
        assert list(json.loads(frames[0])) == ["seq", "data"]
        assert await heard(pub) == []  # nobody asked for answers


async def test_the_unnamed_stream_is_default(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box:
        sub = await box.sub("default")
        await publish(await box.pub(ack=1), "a")
        assert await heard(sub, 1) == [{"seq": 1, "data": "a"}]


async def test_an_epoch_makes_resets_exact_and_long(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, SMALL) as box:
        await publish(await box.pub("small", ack=1), *"abcdefghi")
        epoch = (await box.stats("small"))["epoch"]
        assert await heard(await box.sub("small", last=7, epoch=epoch), 2) == [
            {"seq": 8, "data": "h"},
            {"seq": 9, "data": "i"},
        ]
        for last, asked, why in ((7, "other", "epoch"), (10, epoch, "ahead"), (1, epoch, "evicted"), (0, "", "epoch")):
            sub = await box.sub("small", last=last, epoch=asked)
            assert await heard(sub) == [{"reset": True, "seq": 9, "epoch": epoch, "why": why, "first": 5}]


@pytest.mark.parametrize("clean", [True, False])
async def test_numbers_of_a_volatile_stream_go_on_after_a_restart_or_it_is_said(tmp_path: Path, clean: bool) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    async with StreamBox(folder) as box:
        await publish(await box.pub("t", ack=1), *["x"] * 480)
        epoch = (await box.stats("t"))["epoch"]
        crashed = box.crashed_folder()
    async with StreamBox(folder if clean else crashed) as box:
        sub = await box.sub("t", last=480)
        foreign = await box.sub("t", last=480, epoch="foreign")
        (seq,) = await publish(await box.pub("t", ack=1), "next")
        frames = await heard(sub)
        if clean:
            assert seq == 481
            assert frames == [{"seq": 481, "data": "next"}]
        else:
            assert seq > 481  # never a number twice
            assert frames == [{"reset": True, "seq": seq - 1}, {"seq": seq, "data": "next"}]
        reset, message = await heard(foreign, 2)
        assert reset == {"reset": True, "seq": seq - 1, "epoch": epoch, "why": "epoch", "first": seq}
        assert message == {"seq": seq, "data": "next"}


async def test_stats_say_three_numbers_first_and_close(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, SMALL) as box:
        nobody = await box.stats()
        assert (nobody["subscribers"], nobody["dropped"], nobody["seq"]) == (0, 0, 0)
        await box.sub("small")
        await publish(await box.pub("small", ack=1), "a", "b")
        stats = await box.stats("small")
        assert list(stats) == ["subscribers", "dropped", "seq", "epoch", "ring", "bytes"]
        assert (stats["subscribers"], stats["dropped"], stats["seq"], stats["ring"]) == (1, 0, 2, 5)
        assert stats["bytes"] == 2 * (2 + len('{"seq":1,"data":"a"}'))
        assert await box.status_of("/stats/nobody-knows-it") == 404


async def test_tagged_frames_are_stored_once_and_answered_in_order(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box:
        sub = await box.sub()
        pub = await box.pub(ack=1, ids=1)
        frames: list[Any] = [
            {"id": "x", "data": "one"},
            {"id": "y", "data": "two"},
            {"id": "x", "data": "again"},
            {"id": "x", "data": "one", "more": 1},
            {"id": 5, "data": "n"},
            '{"id":"x","id":"x","data":"twins"}',
            {"id": "i" * 129, "data": "long"},
            "plain",
            {"data": "d", "id": ""},
        ]
        for frame in frames:
            await pub.send(frame)
        answers = await heard(pub, len(frames))
        assert answers == [{"seq": n} for n in (1, 2, 1, 3, 4, 5, 6, 7, 8)]
        data = [message["data"] for message in await heard(sub, 8)]
        assert data[:2] == ["one", "two"]
        assert json.loads(data[2]) == frames[3]
        assert data[4] == frames[5]
        assert data[6:] == ["plain", "d"]


async def test_the_same_id_by_rpc_gets_the_first_number(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, {"disk": {"durable": True}}) as box:
        for stream in ("t", "disk"):
            sub = await box.sub(stream)
            for _ in range(3):
                a = await box.ready("a")
                answer = await a.ask("stream.publish", {"stream": stream, "data": "once", "id": "x"})
                assert answer["result"]["seq"] == 1
                assert answer["result"]["epoch"] == (await box.stats(stream))["epoch"]
                a.cut()
            assert await heard(sub) == [{"seq": 1, "data": "once"}]


async def test_bad_requests_are_refused_before_the_upgrade_and_make_nothing(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box:
        for last in (
            "-1",
            "1.5",
            "x",
            "",
            "18446744073709551616",
            "9223372036854775808",
            "+1",
            "1&last=2",
            "%EF%BC%91",
        ):
            assert await box.status_of(f"/sub/t?last={last}") == 400, last
        for query in ("ack=2", "ack=yes", "ids=x", "ack=1&ack=0"):
            assert await box.status_of(f"/pub/t?{query}") == 400, query
        for name in ("..", "../../x", "a..b", ".", "-rf", "A", "%00", "..%2f..%2fx", "a%0a", "x" * 129, "x" * 10_000):
            for plane in ("pub", "sub", "stats"):
                assert await box.status_of(f"/{plane}/{name}") in (400, 404, 431), name
        assert await box.status_of("/sub/a/b") == 404
        assert await box.status_of("/sub?token=token-a") == 400
        o = await box.auth("o")
        for stream in ("../../x", "a/b", "\0", ".", "-rf", "x" * 10_000, "\u00e9", "e\u0301", ""):
            error = (await o.ask("stream.publish", {"stream": stream, "data": "d"}))["error"]
            assert (error["code"], error["data"]["outcome"], error["data"]["field"]) == (-32602, "not_sent", "stream")
            for method in ("stream.stats", "stream.delete"):
                assert (await o.ask(method, {"stream": stream}))["error"]["code"] == -32602
        long_id = await o.ask("stream.publish", {"stream": "t", "data": "d", "id": "i" * 129})
        assert (long_id["error"]["code"], long_id["error"]["data"]["field"]) == (-32602, "id")
        assert [row["stream"] for row in (await o.ask("stream.list"))["result"]["streams"]] == ["default"]
    assert names_in(tmp_path) == ["streams"]


@pytest.mark.parametrize("opcode_payload", [(2, b"binary"), (1, b"\xc3\x28"), (1, b"x" * 5000), (11, b"")])
async def test_what_is_no_text_of_bounded_size_closes_the_publisher_and_is_not_stored(
    tmp_path: Path, opcode_payload: tuple[int, bytes]
) -> None:
    from tests.support.frames import client_frame

    opcode, payload = opcode_payload
    code = {2: 1003, 11: 1002}.get(opcode, 1009 if len(payload) > 4096 else 1007)
    async with StreamBox(tmp_path, config={"kernel": {"max_message": 4096}}) as box:
        sub = await box.sub()
        pub = await box.pub(ack=1)
        await publish(pub, "good")
        await pub.stream.send_all(client_frame(payload, opcode=opcode))
        assert (await pub.close_code())[0] == code
        assert [frame["data"] for frame in await heard(sub)] == ["good"]
        assert (await box.stats())["seq"] == 1


async def test_a_subscriber_may_say_what_it_likes(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box:
        sub = await box.sub()
        await sub.send("hello?")
        await publish(await box.pub(ack=1), "a")
        assert await heard(sub) == [{"seq": 1, "data": "a"}]


async def test_tokens_open_the_plane_by_header_or_subprotocol(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, open_access=False) as box:
        for path in ("/sub", "/pub", "/stats", "/sub/t"):
            assert await box.status_of(path) == 401
            assert await box.status_of(path, token="token-nobody") == 401
        assert await box.status_of("/sub", token="token-a") == 101
        page = await box.path("/sub/t", subprotocols=["kite.stream", "kite.bearer.token-a"])
        assert page.ws.subprotocol == "kite.stream"
        pub = await box.path("/pub/t", token="token-b")
        await pub.send("a")
        assert await heard(page, 1) == [{"seq": 1, "data": "a"}]


async def test_a_call_list_without_streams_keeps_a_module_out(tmp_path: Path) -> None:
    config = {"permissions": {"a": {"call": ["model.*"]}, "b": {"call": ["stream.subscribe"]}}}
    async with StreamBox(tmp_path, open_access=False, config=config) as box:
        assert [await box.status_of(p, token="token-a") for p in ("/sub", "/pub", "/stats")] == [403, 403, 403]
        assert [await box.status_of(p, token="token-b") for p in ("/sub", "/pub")] == [101, 403]


async def test_a_revoked_token_closes_its_stream_wires(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, open_access=False) as box:
        sub, pub = await box.path("/sub", token="token-a"), await box.path("/pub", token="token-a")
        other = await box.path("/sub", token="token-b")
        del box.roles["a"]
        box.kernel.use_tokens(box.tokens())
        for peer in (sub, pub):
            assert (await peer.close_code(1.0))[0] == 4001
            (bye,) = peer.seen
            assert (bye["method"], bye["params"]["verdict"]) == ("bye", "never")
        assert await box.status_of("/sub", token="token-a") == 401
        await publish(await box.path("/pub?ack=1", token="token-b"), "still here")
        assert len(await heard(other, 1)) == 1


async def test_deleting_closes_the_wires_and_begins_anew(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, {"disk": {"durable": True}, **SMALL}) as box:
        o = await box.auth("o")
        for stream in ("disk", "small", "made", "default"):
            sub, pub = await box.sub(stream), await box.pub(stream, ack=1)
            await publish(pub, "a", "b")
            before = (await box.stats(stream))["epoch"]
            assert (await o.ask("stream.delete", {"stream": stream}))["result"] == {}
            assert await sub.close_code() == (1000, "deleted")
            assert await pub.close_code() == (1000, "deleted")
            fresh = await box.sub(stream, last=2, epoch=before)
            (reset,) = await heard(fresh)
            assert (reset["why"], reset["seq"]) == ("epoch", 0)
            assert await publish(await box.pub(stream, ack=1), "c") == [1]
        assert (await o.ask("stream.delete", {"stream": "nobody-knows-it"}))["error"]["code"] == -32602
    assert [name for name in names_in(tmp_path / "streams") if "." not in name] == ["disk"]


async def test_the_end_of_the_kernel_is_said_to_every_wire(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, {"disk": {"durable": True}}) as box:
        wires = [await box.sub(), await box.pub(), await box.sub("disk"), await box.pub("disk")]
        box.kernel.stop("kernel_stop")
        for peer in wires:
            assert (await peer.close_code())[0] == 1001
        await box.ended.wait()


async def test_streams_are_bounded_and_metrics_name_only_the_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kite_kernel.edge.stream_shelf.STREAMS_MAX", 20)
    async with StreamBox(tmp_path, SMALL) as box:
        o = await box.auth("o")
        answers = [await o.ask("stream.publish", {"stream": f"s{n}", "data": "x"}) for n in range(40)]
        assert ["result" in answer for answer in answers] == [True] * 18 + [False] * 22
        refused = answers[-1]["error"]
        assert (refused["code"], refused["data"]["reason"], refused["data"]["outcome"]) == (-32600, "limit", "not_sent")
        assert await box.status_of("/sub/another") == 503
        lines = "\n".join(box.plane_metrics())
        assert 'kite_stream_published_total{stream="other"} 18' in lines
        assert 'stream="small"' in lines
        assert "s17" not in lines


async def test_numbers_name_rate_and_the_lag_of_each(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, pipe_bytes=2000) as box:
        slow = await box.sub()
        await box.sub()
        slow.unread()
        pub = await box.pub(ack=1)
        await publish(pub, *["x" * 100] * 60)
        o = await box.auth("o")
        stats = (await o.ask("stream.stats", {"stream": "default"}))["result"]
        assert (stats["subscribers"], stats["published"], stats["seq"], stats["first"]) == (2, 60, 60, 1)
        assert [row["lag"] > 0 for row in stats["lags"]] == [True, False]
        assert stats["lag_max"] == stats["lags"][0]["lag"]
        with trio.fail_after(10):
            while not (await o.ask("stream.list"))["result"]["streams"][0]["rate"]:
                await publish(pub, "x")
                await trio.sleep(0.1)
