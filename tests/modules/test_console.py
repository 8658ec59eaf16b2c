"""The console in a real Chromium against a whole instance: the way in, orders, a killed kernel.

Source: spec 80 §2, cases X-04, X-05.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyotp
import pytest
import trio
from tests.support.console import Console, console
from tests.support.lab import Lab

NASTY = "<img src=x onerror=alert(1)>"
COUNTER = '''
import trio
from kite_modules.sdk import Module
module = Module("counter")
@module.method
async def add(left: int, right: int = 2) -> int:
    """Add two numbers. <b>Not bold.</b>"""
    return left + right
@module.task
async def count(kite):
    number = 0
    while True:
        number += 1
        kite.publish_nowait("counter.tick", {"n": number, "text": "<img src=x onerror=alert(1)>"})
        await trio.sleep(0.1)
module.run()
'''
TOML = '[relay]\nlisten = "127.0.0.1:0"\ntls = "off"\n[module.counter]\nmodule = "counter.py"\n'
PASSWORD = "correct horse"


class Instance:
    """The instance, its users, and where its console is."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.url = str(json.loads((lab.state / "modules" / "relay" / "relay.json").read_bytes())["url"])
        self._users: dict[str, dict[str, Any]] = {}

    def code(self, name: str, role: str = "admin") -> str:
        """Return a fresh second factor of a user, who is made at the first call."""
        if name not in self._users:
            words = [sys.executable, "-P", "-m", "kite_modules.cli.main", "relay", "user", "add", name, "--role", role]
            done = subprocess.run(
                [*words, "--password-stdin", "--json"],
                input=PASSWORD + "\n",
                env=self.lab.env(),
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            self._users[name] = json.loads(done.stdout)
            return pyotp.parse_uri(self._users[name]["otpauth"]).now()  # type: ignore[attr-defined,no-any-return]
        return str(self._users[name]["recovery_codes"].pop())


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with Lab(tmp_path_factory.mktemp("console"), TOML, files={"counter.py": COUNTER}) as lab:
        lab.up()
        yield Instance(lab)


async def numbers(shown: Console) -> list[int]:
    """Return the numbers of the ticks that the event list shows, oldest first."""
    texts = await shown.page.evaluate(
        "[...document.querySelectorAll('[data-test=event-row]')].filter((row) => row.querySelector('b').textContent"
        " === 'counter.tick').map((row) => row.querySelector('code').textContent).reverse()"
    )
    return [int(json.loads(text)["n"]) for text in texts]


async def test_wrong_ways_in_then_the_right_one(instance: Instance, tmp_path: Path) -> None:
    code = instance.code(NASTY)
    async with console(tmp_path, instance.url) as shown:
        assert await shown.page.evaluate("document.documentElement.lang.slice(0, 2)") == "en"
        await shown.wait("login-user")
        assert await shown.faults() == []
        await shown.click("lang-switch")
        await shown.page.until("document.documentElement.lang.startsWith('zh')")
        await shown.shot("login-zh")
        await shown.click("lang-switch")
        await shown.type("login-user", NASTY)
        await shown.type("login-password", "wrong")
        await shown.click("login-submit")
        await shown.wait("login-error")
        wrong = "000000" if code != "000000" else "111111"
        await shown.type("login-password", PASSWORD)
        await shown.click("login-submit")
        await shown.wait("login-code")
        await shown.type("login-code", wrong)
        await shown.page.evaluate("document.querySelector('[data-test=login-submit]')?.click()")
        await shown.wait("login-error")
        await shown.wait("login-user")
        await shown.log_in(NASTY, PASSWORD, code)
        await shown.page.until("document.querySelectorAll('[data-test=module-row]').length === 2")
        assert await shown.row("counter") == "running"
        await shown.page.until("document.querySelector('[data-test=verdict]').dataset.state === 'ok'")
        await shown.page.until("document.querySelectorAll('[data-test=event-row]').length > 2")
        hidden = await shown.page.evaluate(
            "document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"
        )
        assert "session" not in hidden
        assert await shown.faults() == []
        await shown.shot("overview")
        await shown.page.goto(instance.url)  # a reload asks for nothing
        await shown.until_state("open")
        assert await shown.page.evaluate("window.violations") == []
        assert shown.page.console == []


async def test_a_module_is_restarted_after_a_question(instance: Instance, tmp_path: Path) -> None:
    async with console(tmp_path, instance.url) as shown:
        await shown.log_in("op", PASSWORD, instance.code("op", "operator"))
        before = instance.lab.pid("counter")
        row = '[data-module="counter"]'
        await shown.click("restart-button", row)
        await shown.wait("confirm-button")
        await shown.shot("question")
        await shown.page.command(
            "Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27
        )
        await shown.page.until("document.querySelector('[data-test=confirm-button]') === null")
        assert instance.lab.pid("counter") == before
        await shown.click("restart-button", row)
        await shown.click("confirm-button")
        await shown.page.until("document.querySelector('[data-test=confirm-button]') === null")
        await trio.to_thread.run_sync(
            lambda: instance.lab.until(lambda: instance.lab.pid("counter") not in (0, before), "another process")
        )
        await shown.page.until(
            """document.querySelector('[data-module="counter"]').dataset.state === 'running'""", timeout_s=60
        )
        await shown.page.evaluate("location.hash = '#/module/counter'")
        await shown.page.until(
            "[...document.querySelectorAll('summary code')].some((c) => c.textContent === 'counter.add')"
        )
        await shown.page.evaluate(
            "[...document.querySelectorAll('details')].find((d) => d.innerText.includes('add')).open = true"
        )
        await shown.page.evaluate("document.querySelector('details[open] input[type=number]').focus()")
        await shown.page.command("Input.insertText", text="40")
        await shown.page.evaluate("document.querySelector('details[open] form.call button').click()")
        await shown.page.until("document.querySelector('details[open] .answer pre')?.textContent === '42'")
        assert await shown.faults() == []
        await shown.shot("module")
        for name in ("streams", "logs", "ownership", "chat"):
            await shown.page.evaluate(f"location.hash = '#/{name}'")
            await shown.page.until("document.querySelector('#content h1, #content h2') !== null")
            assert await shown.faults() == []
        assert await shown.page.evaluate("window.violations") == []
        assert shown.page.console == []


async def test_a_killed_kernel_is_seen_and_nothing_is_missing(instance: Instance, tmp_path: Path) -> None:
    async with console(tmp_path, instance.url) as shown:
        await shown.log_in("viewer", PASSWORD, instance.code("viewer", "viewer"))
        assert not await shown.has("restart-button")
        await shown.page.evaluate("window.same = true")
        await shown.page.until("document.querySelectorAll('[data-test=event-row]').length > 5")
        before = await numbers(shown)
        os.kill(instance.lab.pid("kernel"), signal.SIGKILL)
        await shown.page.until("document.querySelector('[data-test=connection-state]').dataset.state !== 'open'")
        await shown.until_state("open")
        assert await shown.page.evaluate("window.same") is True
        await shown.page.until("""document.querySelector('[data-module="counter"]')?.dataset.state === 'running'""")
        # What was published while the relay itself was away went to nobody; from its return on each one is there.
        again = max(await numbers(shown)) + 1
        seen: set[int] = set()
        with trio.fail_after(60):
            while not seen or max(seen) < again + 40:
                seen |= set(await numbers(shown))
                await trio.sleep(0.3)
        assert set(before) == set(range(min(before), max(before) + 1))
        assert set(range(again, max(seen) + 1)) <= seen
        await shown.size(390, 844)
        await shown.page.until("document.documentElement.scrollWidth <= 390")
        await shown.shot("phone")
        assert await shown.page.evaluate("window.violations") == []
