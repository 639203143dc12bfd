"""In Chromium, the SDK and the demo page sign a wallet in, and messages to it appear as toasts."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import Page, Route, expect

from api.cli.database import read_secret
from api.clock import Clock, token
from api.crypto import Keyring
from api.embedded import find
from api.inapp.sessions import Sessions
from api.settings import Settings
from api.store.database import Database
from tests.inapp.wallet import Wallet
from tests.installation import Installation
from tests.running import Running

pytestmark = pytest.mark.browser

PROVIDER = "window.ethereum = { request: (call) => window.askWallet(call) };"
DATA = {"actionType": "send_inapp", "recipientMode": "triggering_profile"}
COUNTING = """async (key) => {
    const { start } = await import("/inapp/client.js");
    document.title = "given:";
    const onPush = ({ title }) => { document.title += ` ${title}`; };
    window.client = start({ publishableKey: key, apiBaseUrl: location.origin + "/api/v1/", provider: window.ethereum,
                            onPush, onState: (state) => { document.documentElement.dataset.state = state; } });
    return await window.client.ready;
}"""

WATCHING = """() => {
    window.lines = [];
    window.WebSocket = class extends window.WebSocket {
        begun = performance.now();
        constructor(address) {
            super(address);
            lines.push(this);
            this.addEventListener("message", ({ data }) => {
                document.documentElement.dataset.heard = JSON.parse(data).type;
            });
            this.addEventListener("close", ({ code, reason }) => {
                this.ended = performance.now();
                this.end = [code, reason];
            });
        }
        send(text) {
            super.send(text);
            this.first ??= JSON.parse(text);
            document.documentElement.dataset.lines = lines.length;
        }
    };
}"""


class Extension:
    """The part of a wallet's browser extension that a page uses."""

    def __init__(self) -> None:
        self.wallet = Wallet(token(32))
        self.signed: list[str] = []

    def answer(self, call: dict[str, Any]) -> Any:
        match call:
            case {"method": "eth_requestAccounts"}:
                return [self.wallet.address]
            case {"method": "eth_chainId"}:
                return "0x89"
            case {"method": "personal_sign", "params": [text, self.wallet.address]}:
                self.signed.append(bytes.fromhex(text[2:]).decode())
                return self.wallet.sign(self.signed[-1])
        raise AssertionError(call)


@pytest.fixture
def extension(page: Page) -> Extension:
    installed = Extension()
    page.expose_function("askWallet", installed.answer)
    page.add_init_script(PROVIDER)
    return installed


@pytest.fixture
def installation(running: Running, tmp_path: Path) -> Iterator[Installation]:
    """More processes of the system on the same database."""
    server = find(running.folder / "data")
    assert server is not None
    built = Installation(server.dsn, tmp_path)
    yield built
    built.stop()


def secret_of(running: Running) -> str:
    return read_secret(Settings(data_dir=running.folder / "data")) or ""


def send(running: Running, wallet: Wallet, title: str, body: str = "b") -> None:
    """Have an automation send a message to a wallet."""
    event = f"inapp_{token(4).hex()}"
    nodes = [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "n", "type": "send_inapp", "data": {**DATA, "title": title, "body": body}},
    ]
    graph = {"nodes": nodes, "edges": [{"id": "e", "source": "t", "target": "n"}]}
    spec = {"type": "app_event", "event": event}
    with httpx.Client(base_url=f"{running.url}/api/v1", timeout=10) as client:
        author = {"authorization": f"Bearer {running.keys['workbench']}"}
        response = client.post(
            "/automations", json={"name": event, "triggerSpec": spec, "graph": graph}, headers=author
        ).raise_for_status()
        client.post(f"/automations/{response.json()['id']}/publish", json={}, headers=author).raise_for_status()
        posted = {"event": event, "contact": {"walletAddress": wallet.address}}
        backend = {"authorization": f"Bearer {running.keys['live']}"}
        client.post("/events", json=posted, headers=backend).raise_for_status()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_demo_page_shows_toasts(
    page: Page, running: Running, extension: Extension, pictures: Path, scheme: Any
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{running.url}/inapp/demo")
    page.get_by_label("Publishable key").fill(running.keys["publishable"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("status")).to_have_text(f"Signed in as {extension.wallet.address}.")
    assert extension.signed[0].startswith("127.0.0.1:")
    send(running, extension.wallet, "Your deposit has arrived", "1,250.00 USDC are in your account.\nThank you!")
    send(running, extension.wallet, "<b>Text</b>, not HTML", "<img src=x onerror=alert(1)>")
    toasts = page.get_by_role("log").get_by_role("listitem")
    expect(toasts).to_have_count(2)
    expect(toasts.last.get_by_role("heading")).to_have_text("<b>Text</b>, not HTML")
    page.screenshot(path=pictures / f"inapp-demo-{scheme}.png", animations="disabled")
    page.get_by_role("button", name="Dismiss: Your deposit has arrived").click()
    expect(toasts).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")


def test_the_sdk_delivers_every_message_once(page: Page, running: Running, extension: Extension) -> None:
    page.goto(f"{running.url}/inapp/demo")
    send(running, extension.wallet, "missed")
    assert page.evaluate(COUNTING, running.keys["publishable"]) == extension.wallet.address
    expect(page).to_have_title("given: missed")
    page.evaluate("client.stop()")
    send(running, extension.wallet, "while-away")
    page.evaluate(COUNTING, running.keys["publishable"])
    expect(page).to_have_title("given: while-away")


def test_a_lost_connection_is_restored_without_the_wallet(page: Page, running: Running, extension: Extension) -> None:
    page.goto(f"{running.url}/inapp/demo")
    page.evaluate(WATCHING)
    page.evaluate(COUNTING, running.keys["publishable"])
    page.evaluate("lines[0].close()")
    expect(page.locator("html")).to_have_attribute("data-state", "waiting")
    expect(page.locator("html")).to_have_attribute("data-state", "connected")
    send(running, extension.wallet, "late")
    expect(page).to_have_title("given: late")
    assert len(extension.signed) == 1


def test_a_session_is_renewed_without_the_wallet(page: Page, running: Running, extension: Extension) -> None:
    sessions = Sessions(Database(""), Keyring(secret_of(running)), Clock())
    shortened: list[str] = []

    def shorten(route: Route) -> None:
        answer = route.fetch()
        session = sessions.open(answer.json()["token"])
        assert session is not None
        soon = Clock().now_us() + 600_000_000
        shortened.append(sessions.seal(msgspec.structs.replace(session, ends_us=soon)))
        route.fulfill(response=answer, json={**answer.json(), "token": shortened[0]})

    page.route("**/inapp/session", shorten)
    page.goto(f"{running.url}/inapp/demo")
    page.evaluate(WATCHING)
    page.evaluate(COUNTING, running.keys["publishable"])
    expect(page.locator("html")).to_have_attribute("data-heard", "SESSION", timeout=15_000)
    page.evaluate("lines[0].close()")
    expect(page.locator("html")).to_have_attribute("data-lines", "2", timeout=15_000)
    first, second = page.evaluate("lines.map((line) => line.first.token)")
    assert first == shortened[0] != second
    assert sessions.open(second) is not None
    assert len(extension.signed) == 1


def test_the_sdk_reconnects_after_retry_after(
    page: Page, running: Running, installation: Installation, extension: Extension
) -> None:
    api = installation.start_api("--workers", "2", WORKBENCH_SECRET=secret_of(running))
    page.goto(f"{api.url}/inapp/demo")
    page.evaluate(WATCHING)
    page.evaluate(COUNTING, running.keys["publishable"])
    api.process.send_signal(signal.SIGHUP)  # a rolling restart
    expect(page.locator("html")).to_have_attribute("data-lines", "2", timeout=15_000)
    assert page.evaluate("lines[0].end") == [1012, "the server restarts; retry-after=1.0"]
    assert page.evaluate("lines[1].begun - lines[0].ended") >= 1_000
    assert len(extension.signed) == 1
    page.evaluate("client.stop()")  # before the API ends: a page must not complain


def test_another_account_signs_in_separately(page: Page, running: Running, extension: Extension) -> None:
    page.add_init_script("ethereum.on = (name, listener) => { window[name] = listener; };")
    page.goto(f"{running.url}/inapp/demo")
    first = extension.wallet
    page.evaluate(COUNTING, running.keys["publishable"])
    extension.wallet = Wallet(token(32))
    page.evaluate("(address) => accountsChanged([address])", extension.wallet.address)
    send(running, first, "for-the-first")
    send(running, extension.wallet, "for-the-second")
    expect(page).to_have_title("given: for-the-second")
    page.evaluate("accountsChanged([])")
    expect(page.locator("html")).to_have_attribute("data-state", "stopped")


def test_a_refused_signature_is_reported(page: Page, running: Running) -> None:
    page.add_init_script("window.ethereum = { request: async () => { throw { code: 4001, message: 'rejected' }; } };")
    page.goto(f"{running.url}/inapp/demo")
    page.get_by_label("Publishable key").fill(running.keys["publishable"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("status")).to_have_text(
        "Could not connect: the wallet refused eth_requestAccounts: rejected"
    )
    expect(page.get_by_role("button", name="Sign in")).to_be_enabled()
