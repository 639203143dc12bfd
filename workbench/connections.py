"""Connections: requests to providers, such as chat and text message services, that automations send messages by."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, moment, printable_text, table_columns
from workbench.display.words import join_and, join_or
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.language.body import SLUG, SLUG_CHARACTERS, read_value
from workbench.language.codec import normalize
from workbench.language.connections import HIDDEN, ConnectionDefinition, compose_request
from workbench.language.problem import suggestion
from workbench.language.responses import AutomationUse, ConnectionDetail, SavedConnectionView
from workbench.language.template import TemplateError

JsonObject = dict[str, Any]

_DEFINITION = ("url", "method", "headers", "body", "success", "permanent", "rate")


class ProviderTemplate(msgspec.Struct, frozen=True):
    """A connection to a provider, which needs only keys.

    `base_url`: of its API. `definition`: the rest of the connection, with a `url` below it. `parameters`: what
    `create_from` needs; `secrets` returns the secrets of the connection for them.
    """

    base_url: str
    definition: JsonObject
    parameters: tuple[str, ...]
    secrets: Callable[[Mapping[str, str]], dict[str, str]] = dict


def _path_after(start: str, url: str) -> str:
    _, separator, path = url.partition(start)
    if not separator:
        raise InvalidArgumentError(f"webhook_url: must be the URL of the webhook, with {start} in it")
    return path


def _twilio_secrets(parameters: Mapping[str, str]) -> dict[str, str]:
    account, login = parameters["account_sid"], f"{parameters['account_sid']}:{parameters['auth_token']}"
    basic = base64.b64encode(login.encode()).decode()
    return {"account": account, "basic": basic, "sender": parameters["sender"]}


# Otherwise a contact with the name <!channel> would notify a whole channel.
_SLACK_TEXT = "{{ fields.text | replace('&', '&amp;') | replace('<', '&lt;') | replace('>', '&gt;') }}"
_SLACK_ERRORS = (
    "account_inactive",
    "channel_not_found",
    "invalid_auth",
    "is_archived",
    "missing_scope",
    "msg_too_long",
    "no_permission",
    "no_text",
    "not_authed",
    "not_in_channel",
    "restricted_action",
    "token_expired",
    "token_revoked",
)
TEMPLATES: dict[str, ProviderTemplate] = {
    # An incoming webhook.
    "slack": ProviderTemplate(
        "https://hooks.slack.com",
        {
            "url": "/services/{{ secrets.path }}",
            "body": {"text": _SLACK_TEXT},
            "success": {"status": [200]},
            "permanent": {"status": [400, 403, 404, 410]},
            "rate": 1,
        },
        ("webhook_url",),
        lambda parameters: {"path": _path_after("/services/", parameters["webhook_url"])},
    ),
    # chat.postMessage of a bot. Slack answers 200 with {"ok": false} if it did not post the message.
    "slack_bot": ProviderTemplate(
        "https://slack.com",
        {
            "url": "/api/chat.postMessage",
            "headers": {
                "authorization": "Bearer {{ secrets.token }}",
                "content-type": "application/json; charset=utf-8",
            },
            "body": {"channel": "{{ fields.channel }}", "text": _SLACK_TEXT},
            "success": {"where": "answer.ok"},
            "permanent": {"where": f"answer.error in {list(_SLACK_ERRORS)}"},
            "rate": 1,
        },
        ("token",),
    ),
    # A webhook.
    "discord": ProviderTemplate(
        "https://discord.com",
        {
            "url": "/api/webhooks/{{ secrets.path }}",
            "body": {"content": "{{ fields.text }}", "allowed_mentions": {"parse": []}},
            "success": {"status": [200, 204]},
            "permanent": {"status": [400, 401, 403, 404]},
            "rate": 0.5,
        },
        ("webhook_url",),
        lambda parameters: {"path": _path_after("/api/webhooks/", parameters["webhook_url"])},
    ),
    # A bot.
    "telegram": ProviderTemplate(
        "https://api.telegram.org",
        {
            "url": "/bot{{ secrets.token }}/sendMessage",
            "body": {"chat_id": "{{ fields.chat }}", "text": "{{ fields.text }}"},
            "success": {"where": "answer.ok"},
            "permanent": {"status": [400, 401, 403, 404]},
            "rate": 25,
        },
        ("token",),
    ),
    # Text messages, also by a service with the same API.
    "twilio": ProviderTemplate(
        "https://api.twilio.com",
        {
            "url": "/2010-04-01/Accounts/{{ secrets.account }}/Messages.json",
            "headers": {
                "authorization": "Basic {{ secrets.basic }}",
                "content-type": "application/x-www-form-urlencoded",
            },
            "body": {"To": "{{ fields.to }}", "From": "{{ secrets.sender }}", "Body": "{{ fields.text }}"},
            "success": {"status": [201]},
            "permanent": {"status": [400, 401, 403, 404]},
            "rate": 1,
        },
        ("account_sid", "auth_token", "sender"),
        _twilio_secrets,
    ),
}


class AutomationUses(TableSequence[AutomationUse]):
    """The automations that use a connection or a topic: in their draft, and in their live version."""

    def _view(self) -> TableView:
        columns = table_columns("automation", "draft", "live version")
        rows = [(use.name, "yes" if use.draft else "no", use.version or "") for use in self]
        return TableView(columns, rows, "", "No automation uses it.", "")


class SavedConnection:
    """A connection as it was read or saved, without its secrets. `secrets`: their names; `fields`: what it needs."""

    def __init__(self, connection: Connection, view: SavedConnectionView) -> None:
        self._connection, self._view = connection, view
        self.name, self.url, self.rate = view.name, view.url, view.rate
        self.secrets, self.fields = view.secrets, tuple(field.name for field in view.fields)

    @usage_example('wb.connections["slack"].preview(text="Hello")')
    def preview(self, **fields: object) -> str:
        """Return the request of a message with these values, with its secrets hidden. Sends nothing."""
        try:
            hidden = dict.fromkeys(self.secrets, HIDDEN)
            values = normalize(fields)
            request = compose_request(_read(self._view), values, hidden, "the id of the message")
        except TemplateError as error:
            raise InvalidArgumentError(str(error)) from None
        headers = [f"{name}: {value}" for name, value in request.headers.items()]
        return "\n".join([f"{request.method} {request.url}", *headers, "", request.body.decode()])

    @usage_example('wb.connections["slack"].replace_secrets(path="T0/B0/x")')
    def replace_secrets(self, **secrets: str) -> "SavedConnection":
        """Replace secrets. Messages that leave from now on have the new ones; nothing is published again."""
        answer = self._connection.put(f"/connections/{self.name}", {**_definition_of(self._view), "secrets": secrets})
        return SavedConnection(self._connection, msgspec.convert(answer, SavedConnectionView))

    def used_by(self) -> AutomationUses:
        """Return the automations that send by it."""
        detail = msgspec.convert(self._connection.get(f"/connections/{self.name}"), ConnectionDetail)
        return AutomationUses(detail.used_by)

    def delete(self) -> None:
        """Delete it. Raises ConflictError if the live version of an automation sends by it."""
        self._connection.delete(f"/connections/{self.name}")

    @printable_text
    def __repr__(self) -> str:
        fields, secrets = join_and(self.fields) or "none", join_and(self.secrets) or "none"
        return f"{self.name}: {self._view.method} {self.url}, fields: {fields}, secrets: {secrets}"


class Connections(TableSequence[SavedConnectionView]):
    """The connections of the organization, by name. `wb.connections["slack"]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        answer = connection.get("/connections")
        super().__init__(msgspec.convert(answer["connections"], tuple[SavedConnectionView, ...]))
        self._connection = connection

    @usage_example('wb.connections.create_from("slack", webhook_url="https://hooks.slack.com/services/T0/B0/x")')
    def create_from(
        self, template: str, name: str | None = None, *, base_url: str | None = None, **parameters: str
    ) -> SavedConnection:
        """Create or replace a connection to a provider from its keys, and return it.

        `template`: `slack` (webhook_url), `slack_bot` (token), `discord` (webhook_url), `telegram` (token), `twilio`
        (account_sid, auth_token, sender). `name`: by default that of the template. `base_url`: of another service with
        the same API.
        """
        provider = TEMPLATES.get(template)
        if provider is None:
            hint = suggestion(template, TEMPLATES, f"; the templates are {join_and(tuple(TEMPLATES))}")
            raise InvalidArgumentError(f"Unknown template {template!r}{hint}")
        if parameters.keys() != set(provider.parameters):
            raise InvalidArgumentError(f"The template {template!r} needs {join_and(provider.parameters)}")
        url = (base_url or provider.base_url).rstrip("/") + provider.definition["url"]
        secrets = provider.secrets(parameters)
        return self.save(name or template, **{**provider.definition, "url": url}, secrets=secrets)

    @usage_example(
        'wb.connections.save("crm", url="https://…", body={"note": "{{ fields.note }}"}, success={"status": ["2xx"]})'
    )
    def save(
        self,
        name: str,
        *,
        url: str,
        body: JsonObject,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        success: JsonObject | None = None,
        permanent: JsonObject | None = None,
        rate: float | None = None,
    ) -> SavedConnection:
        """Create or replace a connection, and return it.

        Texts are templates over `fields.NAME`, `secrets.NAME` and `messageId`. `success` and `permanent`: answers
        that mean that a message was sent, or never can be: `{"status": ["2xx", 409], "where": "answer.ok"}`. `rate`:
        messages a second. Secrets that are left out keep their values, unless the request changes.
        """
        if not SLUG.fullmatch(str(name)):
            raise InvalidArgumentError(f"{name!r}: the name of a connection must have {SLUG_CHARACTERS}")
        written: JsonObject = {"url": url, "method": method, "headers": headers, "body": body, "secrets": secrets}
        written |= {"success": success, "permanent": permanent, "rate": rate}
        answer = self._connection.put(f"/connections/{name}", {k: v for k, v in written.items() if v is not None})
        return SavedConnection(self._connection, msgspec.convert(answer, SavedConnectionView))

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str):
            return super().__getitem__(index)
        for view in self:
            if view.name == index:
                return SavedConnection(self._connection, view)
        names = [view.name for view in self]
        raise NotFoundError(f"Connection not found: {index!r}{suggestion(index, names, '. wb.connections lists them')}")

    def _view(self) -> TableView:
        columns = table_columns("name", "request", "fields", "messages a second", "changed at (UTC)")
        rows = [
            (
                view.name,
                f"{view.method} {view.url}",
                ", ".join(field.name for field in view.fields),
                view.rate or "",
                moment(view.updated_at),
            )
            for view in self
        ]
        note = 'In an automation: .send_via("name", …)' if rows else ""
        empty = f"No connections yet. wb.connections.create_from(…) creates one to {join_or(tuple(TEMPLATES))}."
        return TableView(columns, rows, "Connections", empty, note)


def read_connections(connection: Connection) -> dict[str, ConnectionDefinition]:
    """Return the connections of the organization, by name."""
    views = msgspec.convert(connection.get("/connections")["connections"], tuple[SavedConnectionView, ...])
    return {view.name: _read(view) for view in views}


def _read(view: SavedConnectionView) -> ConnectionDefinition:
    definition = read_value(ConnectionDefinition, _definition_of(view), "")
    assert isinstance(definition, ConnectionDefinition), "the server has checked it"
    return definition


def _definition_of(view: SavedConnectionView) -> JsonObject:
    definition = {name: msgspec.to_builtins(getattr(view, name)) for name in _DEFINITION}
    return {name: value for name, value in definition.items() if value is not None}
