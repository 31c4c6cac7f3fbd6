"""A headless Chromium that tests talk to: run a script in the page, press keys, take a picture."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from pathlib import Path

import httpx
from websockets.sync.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One open page, over the browser's debugging protocol."""

    def __init__(self, socket):
        self._socket, self._number = socket, 0

    def _call(self, method, **params):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv(timeout=60))).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, address):
        self._call("Page.enable")
        self._call("Page.navigate", url=address)

    def run(self, script):
        """Value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script, seconds=60.0):
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"!!({script})"):
            assert time.monotonic() < end, f"{script} is not true: {self.run('document.body.innerText')}"
            time.sleep(0.05)

    def press(self, key):
        text = key if len(key) == 1 else ""
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text):
        self._call("Input.insertText", text=text)

    def picture(self, path, width=1400, height=1000):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        Path(path).write_bytes(b64decode(self._call("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def opened(address):
    """A page at an address, in a browser of its own."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        quiet = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
        command = [CHROMIUM, *quiet.split(), f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        browser = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": profile})
        try:
            port = _port(Path(profile) / "DevToolsActivePort", browser)
            pages = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False, timeout=60.0).json()
            target = next(page for page in pages if page["type"] == "page")["webSocketDebuggerUrl"]
            with connect(target, max_size=None, proxy=None, open_timeout=60.0) as socket:
                page = Page(socket)
                page.open(address)
                yield page
        finally:
            browser.kill()
            browser.wait()


def _port(file, browser):
    end = time.monotonic() + 60
    while not file.exists() or "\n" not in file.read_text():
        assert browser.poll() is None, "the browser ended"
        assert time.monotonic() < end, "the browser did not start"
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])
