"""Links in emails lead to the API, at the port of `up` and at the published port of the containers."""

import re
from email import message_from_string
from email.policy import default
from pathlib import Path

import httpx

from api import settings
from api.clock import token
from tests.installation import until
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


def test_the_public_url_of_containers_has_the_chosen_port() -> None:
    assert _url_of_containers() == "http://localhost:8000"
    assert _url_of_containers(API_PORT="9000") == "http://localhost:9000"
    assert _url_of_containers(API_PORT="9000", WORKBENCH_PUBLIC_URL="https://wb.example/") == "https://wb.example"


def _mails(folder: Path, subject: str) -> list[str]:
    texts = [file.read_text() for file in folder.glob("*")]
    return [text for text in texts if f"Subject: {subject}" in text]


def _url_of_containers(**environment: str) -> str | None:
    """Return the setting that the API and the engine have in their containers."""
    (text,) = re.findall(r"WORKBENCH_PUBLIC_URL: (.+)", COMPOSE.read_text())
    while (match := VARIABLE.search(text)) is not None:
        text = text.replace(match[0], environment.get(match[1]) or match[2])
    return settings.read({"WORKBENCH_PUBLIC_URL": text}).public_url
