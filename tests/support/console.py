"""The console in a real Chromium, driven by its `data-test` attributes as a person would."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.chromium import Page, chromium

AXE = Path(__file__).parent.parent / "modules" / "vendor" / "axe.min.js"
WATCH = """
window.violations = []; window.longTasks = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
});
const watch = new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.longTasks.push(one.duration);
});
watch.observe({ type: "longtask", buffered: true });
"""
STATE = "document.querySelector('[data-test=connection-state]')?.dataset.state"


class Console:
    """One tab with the console in it."""

    def __init__(self, page: Page, url: str, shots: Path) -> None:
        self.page = page
        self.url = url
        self._shots = Path(os.environ.get("KITE_ARTEFACTS") or shots)

    async def open(self) -> None:
        await self.page.goto(self.url)

    async def has(self, name: str) -> bool:
        return bool(await self.page.evaluate(f"document.querySelector('[data-test={name}]') !== null"))

    async def wait(self, name: str, *, timeout_s: float = 30) -> None:
        await self.page.until(f"document.querySelector('[data-test={name}]') !== null", timeout_s=timeout_s)

    async def type(self, name: str, text: str) -> None:
        """Type over what stands in a field."""
        field = f"document.querySelector('[data-test={name}]:not(:disabled)')"
        await self.page.until(f"{field} !== null")
        await self.page.evaluate(f"{field}.focus(), {field}.select()")
        await self.page.command("Input.insertText", text=text)

    async def click(self, name: str, within: str = "") -> None:
        place = f"document.querySelector('{within} [data-test={name}]:not(:disabled)')"
        await self.page.until(f"{place} !== null")
        await self.page.evaluate(f"{place}.click()")

    async def text(self, name: str) -> str:
        return str(await self.page.evaluate(f"document.querySelector('[data-test={name}]')?.innerText ?? ''"))

    async def attribute(self, name: str, attribute: str) -> Any:
        return await self.page.evaluate(f"document.querySelector('[data-test={name}]')?.getAttribute('{attribute}')")

    async def until_state(self, wanted: str, *, timeout_s: float = 60) -> None:
        await self.page.until(f"{STATE} === {json.dumps(wanted)}", timeout_s=timeout_s)

    async def log_in(self, user: str, password: str, code: str) -> None:
        await self.type("login-user", user)
        await self.type("login-password", password)
        await self.click("login-submit")
        await self.wait("login-code")
        await self.type("login-code", code)
        if await self.has("login-submit"):  # six digits go on by themselves
            await self.page.evaluate("document.querySelector('[data-test=login-submit]')?.click()")
        await self.until_state("open")

    async def row(self, module: str) -> str:
        """Return a module's state as its row tells it."""
        return str(
            await self.page.evaluate(
                f"document.querySelector('[data-test=module-row][data-module=\"{module}\"]')?.dataset.state ?? ''"
            )
        )

    async def size(self, width: int, height: int) -> None:
        await self.page.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def shot(self, name: str) -> None:
        await self.page.screenshot(self._shots / f"{name}.png")

    async def faults(self) -> list[str]:
        """Return what axe-core finds that is serious or worse."""
        await self.page.evaluate(f"{AXE.read_text('utf-8')}\n;true")
        found = await self.page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations"
            ".filter((v) => ['serious', 'critical'].includes(v.impact))"
            ".map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(' | ')}`))"
        )
        return [str(one) for one in found]


@contextlib.asynccontextmanager
async def console(folder: Path, url: str, *flags: str) -> AsyncIterator[Console]:
    """Open a browser with the console's page in it."""
    async with chromium(folder / "profile", "--lang=en", *flags) as page:
        await page.command("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        shown = Console(page, url, folder)
        await shown.size(1400, 900)
        await shown.open()
        yield shown
