"""Chromium without a screen, as a person uses the page: by keys and clicks, dark or light, wide or narrow."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

WIDE, PHONE = (1280, 900), (390, 844)
SECONDS = 300.0
"""On a machine that has other work; what is there sooner is found sooner."""


@dataclass
class Browser:
    """A tab at `url`."""

    driver: webdriver.Chrome
    url: str

    def open(self, view: str = "#plan", *, token: str = "") -> None:
        """The page anew, with nothing kept of before."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/livez")
        self.run(
            "sessionStorage.clear(); if (arguments[0]) sessionStorage.setItem('planner.token', arguments[0])", token
        )
        self.driver.get(f"{self.url}/{view}")

    def look(self, *, size: tuple[int, int] = WIDE, dark: bool = False) -> None:
        """The screen's size, and which colours the reader prefers."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def find(self, selector: str) -> WebElement:
        """The first that is there and shown, within some seconds."""
        return self.until(lambda: next((each for each in self.all(selector) if each.is_displayed()), None), selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def until(self, found: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
        """What `found` returns as soon as it is something."""
        end = time.monotonic() + seconds
        while True:
            try:
                if it := found():
                    return it
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < end, f"{what} is not there after {seconds:g} s; {self.complaints()}"
            time.sleep(0.2)  # it shares two cores with what it waits for

    def click(self, selector: str) -> None:
        """As soon as nothing moves over it."""

        def clicked() -> bool:
            with suppress(ElementClickInterceptedException):
                self.find(selector).click()
                return True
            return False

        self.until(clicked, f"a free way to {selector}")

    def fill(self, selector: str, text: str) -> None:
        """A field in place of what it says."""
        field = self.find(selector)
        if field.tag_name == "select":
            self.run("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", field, text)
            assert field.get_attribute("value") == text
            return
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    @property
    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the browser itself finds wrong: scripts that failed, files that are not there, broken policies."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"]

    def asked(self) -> set[str]:
        """Every address that was asked for since the last call, without what a browser makes up itself."""
        messages = [json.loads(each["message"])["message"] for each in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if not url.startswith(("data:", "about:", "blob:"))}

    def photograph(self, path: Path) -> None:
        """The whole page, as high as it is."""
        self.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(url: str) -> Iterator[Browser]:
    """A browser that ends with the block."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "Debian's chromium is not installed: .ci/run installs it"
    assert driver, "Debian's chromium-driver is not installed: .ci/run installs it"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for each in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "disable-extensions",
                 "disable-background-networking", "disable-component-update", "no-first-run"):  # fmt: skip
        options.add_argument(f"--{each}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield Browser(running, url)
    finally:
        running.quit()


__all__ = ["PHONE", "WIDE", "Browser", "Keys", "chromium"]
