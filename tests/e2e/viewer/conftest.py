"""One Chromium for all of a module's tests, each of which gets a stage and a profile of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, async_playwright

from tests.e2e.viewer.stage import FLAGS, PHONE, Scene, staged
from tests.support.programs import require


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def profile(tmp_path: Path) -> AsyncIterator[BrowserContext]:
    """A profile on disk: one in memory may forget its databases once no page of the site is open."""
    async with async_playwright() as driver:
        context = await driver.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=require("chromium"), args=FLAGS, viewport=PHONE
        )
        yield context
        await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def scene(browser: Browser, tmp_path: Path) -> AsyncIterator[Scene]:
    async with staged(browser, tmp_path, status_grace=0.05, history_events=40, cold_wait=0.2) as scene:
        yield scene
