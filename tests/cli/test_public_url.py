"""Links in emails lead to where the API is found: at the port of `up`, and at that of the containers."""

import re
from email import message_from_string
from email.policy import default
from pathlib import Path

import httpx

from api import settings
from api.clock import token
from tests.acceptance.conftest import until
from tests.running import Running

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
VARIABLE = re.compile(r"\$\{(\w+):-([^${}]*)\}")


def test_an_unsubscribe_link_leads_to_the_api_that_up_started(running: Running) -> None:
    name = f"links_{token(4).hex()}"
    wb = running.workbench()
    wb.automation(name).on(name).send_email(subject=name, body="There you are.").publish()
    wb.events.send(name, email=f"{name}@acme.example")
    folder = running.folder / "data" / "mail" / "new"
    until(lambda: len(_mails(folder, name)) == 1, "the email is in the maildir")
    (mail,) = _mails(folder, name)
    link = message_from_string(mail, policy=default)["List-Unsubscribe"].strip("<>")
    assert link.startswith(f"{running.url}/api/v1/unsubscribe?token=")
    assert httpx.get(link).status_code == 200


def test_containers_are_found_at_the_port_that_was_chosen() -> None:
    assert _url_of_containers() == "http://localhost:8000"
    assert _url_of_containers(API_PORT="9000") == "http://localhost:9000"
    assert _url_of_containers(API_PORT="9000", WORKBENCH_PUBLIC_URL="https://wb.example/") == "https://wb.example"


def _mails(folder: Path, subject: str) -> list[str]:
    texts = [each.read_text() for each in folder.glob("*")]
    return [text for text in texts if f"Subject: {subject}" in text]


def _url_of_containers(**environment: str) -> str | None:
    """Return the setting that the API and the engine have in their containers."""
    (text,) = re.findall(r"WORKBENCH_PUBLIC_URL: (.+)", COMPOSE.read_text())
    while (found := VARIABLE.search(text)) is not None:
        text = text.replace(found[0], environment.get(found[1]) or found[2])
    return settings.read({"WORKBENCH_PUBLIC_URL": text}).public_url
