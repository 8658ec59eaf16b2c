"""Calls between modules through the whole kernel, over memory streams on the virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.kernel_box import KernelBox

if TYPE_CHECKING:
    import trio.testing


async def test_call_reaches_its_module_and_its_answer_comes_back_under_its_own_id(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with KernelBox() as box:
        a, b = await box.ready("a"), await box.ready("b")
        await a.send('{"jsonrpc":"2.0","id":1.0,"method":"b.echo","params":{"x":1e400, "z":1.10}}')
        request = await b.call_in()
        assert request["method"] == "echo"
        await b.reply(request["id"], "done")
        text = ""
        while '"result":"done"' not in text:
            text = await a.raw()
        assert '"id":1.0,' in text


async def test_params_and_results_pass_as_bytes(autojump_clock: trio.testing.MockClock) -> None:
    async with KernelBox() as box:
        a, b = await box.ready("a"), await box.ready("b")
        params = '{"x":1e400, "y":18446744073709551617,"z":1.10,"w":"\\u00e9"}'
        await a.send('{"jsonrpc":"2.0","id":7,"method":"b.echo","params":' + params + "}")
        text = ""
        while '"echo"' not in text:
            text = await b.raw()
        assert text.endswith('"params":' + params + "}")
        kid = text.split('"id":')[1].split(",")[0]
        await b.send('{"jsonrpc":"2.0","id":' + kid + ',"result":' + params + "}")
        while '"id":7' not in text:
            text = await a.raw()
        assert text == '{"jsonrpc":"2.0","id":7,"result":' + params + "}"


async def test_deadline_answers_and_cancels_at_the_callee(autojump_clock: trio.testing.MockClock) -> None:
    async with KernelBox() as box:
        a, b = await box.ready("a"), await box.ready("b")
        ident = await a.request("b.echo", {}, meta={"timeout": 2})
        request = await b.call_in()
        answer = await a.answer_of(ident)
        assert answer["error"]["code"] == -32003
        assert answer["error"]["data"]["outcome"] == "unknown"
        cancel = await b.until(lambda frame: frame.get("method") == "$/cancelRequest")
        assert cancel["params"] == {"id": request["id"]}
        operator = await box.auth("o")
        assert (await operator.ask("kernel.pending"))["result"]["calls"] == []
