# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by its DevTools protocol over a pair of pipes. Standard library only.

  with Browser(find_chromium()) as browser:
      page = browser.open("file:///tmp/page.html", width=390, height=844)
      page.evaluate("document.title")
      page.screenshot("page.png")

Scripts of evaluate run outside of the page's content security policy, so a page is examined as it is.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = ("chromium-headless-shell", "chromium", "google-chrome")
TIMEOUT = 60  # seconds for one answer


def find_chromium():
    """The path of a Chromium, or None."""
    for name in CHROMIUM:
        path = shutil.which(name)
        if path:
            return path
    return None


class Browser:
    def __init__(self, program):
        self._profile = tempfile.mkdtemp()
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def place_pipes():  # the browser reads commands from descriptor 3 and writes to 4
            os.dup2(to_browser, 30)
            os.dup2(from_browser, 31)
            os.dup2(30, 3)
            os.dup2(31, 4)

        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--remote-debugging-pipe", "--user-data-dir=" + self._profile, "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._last_id = 0
        self._events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, session=None, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._events.append(answer)

    def events(self, session):
        """Takes the events of a session that have come."""
        self.call("Browser.getVersion")  # whatever was sent before its answer has come
        taken = [event for event in self._events if event.get("sessionId") == session]
        self._events = [event for event in self._events if event.get("sessionId") != session]
        return taken

    def _read(self):
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"the browser does not answer within {TIMEOUT} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, url, width, height, dark=False, scale=1):
        return Page(self, url, width, height, dark, scale)


class Page:
    def __init__(self, browser, url, width, height, dark, scale):
        self._browser = browser
        self.errors = []  # what the console and the browser reported, and dialogs that the page opened
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(domain + ".enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                   mobile=False)
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + TIMEOUT
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") == "about:blank":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{url} is not loaded within {TIMEOUT} s")
            time.sleep(0.02)
        self.collect_errors()

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)

    def evaluate(self, expression):
        """The value of a JavaScript expression, as JSON has it."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return answer["result"].get("value")

    def screenshot(self, path, clip=None):
        """A PNG of the visible part, or of the box (x, y, width, height) of the page."""
        parameters = {}
        if clip:
            parameters = {"clip": dict(zip(("x", "y", "width", "height"), clip), scale=1), "captureBeyondViewport": True}
        data = self._call("Page.captureScreenshot", format="png", **parameters)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def collect_errors(self):
        for event in self._browser.events(self._session):
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"].get("exception", {}).get("description", "an exception"))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                self.errors.append("console." + parameters["type"])
            elif event["method"] == "Page.javascriptDialogOpening":
                self.errors.append("a dialog: " + parameters["message"])
                self._call("Page.handleJavaScriptDialog", accept=True)
        return self.errors

    def _call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)
