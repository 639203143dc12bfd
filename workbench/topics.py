"""Topics: what messages are about. Contacts want or decline each, on the page of their preferences or by the API."""

from collections.abc import Mapping
from typing import Any

import msgspec

from workbench.automation import Automation
from workbench.connection import Connection
from workbench.connections import AutomationUses
from workbench.display.html import TableSequence, TableView, printable_text, table_columns
from workbench.draft import Draft
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.language.body import SLUG, SLUG_CHARACTERS
from workbench.language.problem import suggestion
from workbench.language.responses import TopicView, TopicWithUses
from workbench.language.topics import OptIn
from workbench.publish import SavedAutomation


class Topic:
    """A topic. `label`: its name on the page of preferences, `labels`: in other languages. `opt_in`: none or double."""

    def __init__(self, connection: Connection, row: TopicView) -> None:
        self._connection = connection
        self.name, self.label, self.labels, self.opt_in = row.name, row.label, row.labels, row.opt_in

    def used_by(self) -> AutomationUses:
        """Return the automations whose messages name it."""
        return AutomationUses(msgspec.convert(self._connection.get(f"/topics/{self.name}"), TopicWithUses).used_by)

    def delete(self) -> str:
        """Delete it. Raises ConflictError while an automation uses it. The choices of contacts stay."""
        self._connection.delete(f"/topics/{self.name}")
        return f"Deleted: the topic {self.name}. Saved again, it has the choices of contacts as they were."

    @printable_text
    def __repr__(self) -> str:
        labels = "".join(f", {locale}: {label}" for locale, label in self.labels.items())
        return f"{self.name} ({_OPT_INS[self.opt_in]}): {self.label}{labels}"


class Topics(TableSequence[TopicView]):
    """The topics of the organization, by name. `wb.topics["news"]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        answer = connection.get("/topics")
        super().__init__(msgspec.convert(answer["topics"], tuple[TopicView, ...]))
        self._connection = connection

    @usage_example('wb.topics.save("news", "News", labels={"de": "Neuigkeiten"}, opt_in="double")')
    def save(self, name: str, label: str, *, labels: Mapping[str, str] | None = None, opt_in: OptIn = "none") -> Topic:
        """Create a topic, or change it, and return it. `labels`: its name in other languages, by locale.

        Contacts get messages on a topic until they decline it; with `opt_in="double"` only after they have confirmed a
        link in an email (`.double_opt_in`). A message names its topic: `.send_email(…, topic="news")`.
        """
        if not SLUG.fullmatch(str(name)):
            raise InvalidArgumentError(f"{name!r}: the name of a topic has {SLUG_CHARACTERS}")
        body = {"label": label, "labels": dict(labels or {}), "optIn": opt_in}
        return Topic(self._connection, msgspec.convert(self._connection.put(f"/topics/{name}", body), TopicView))

    @usage_example('wb.topics.double_opt_in("news")')
    def double_opt_in(self, name: str) -> Automation:
        """Return a new automation that asks contacts to confirm a topic, to be edited and published.

        It starts on the event `consent.requested` with `{"topic": name}`, which your sign-up form sends, and the page
        of preferences too. It emails a link, waits for the confirmation, `consent.confirmed`, for seven days, and adds
        the tag `confirmed-NAME`. Once it is saved, open it with `wb.automation("Double opt-in: LABEL")`.
        """
        label = self[name].label
        server = SavedAutomation(self._connection, None)
        return (
            Automation(Draft(f"Double opt-in: {label}"), server)
            .on("consent.requested")
            .where("topic", eq=name)
            .send_email(
                subject=f"Please confirm: {label}",
                body=f"Do you want to receive “{label}”? Confirm it here:\n\n{{{{ confirm_url }}}}\n\n"
                "If you did not ask for this, ignore this email.",
                confirms=name,
            )
            .wait_for("consent.confirmed", within="7d", where={"topic": name})
            .then(lambda b: b.add_tag(f"confirmed-{name}"[:64]))
        )

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str):
            return super().__getitem__(index)
        for topic in self:
            if topic.name == index:
                return Topic(self._connection, topic)
        names = [topic.name for topic in self]
        raise NotFoundError(f"Topic not found: {index!r}{suggestion(index, names, '. wb.topics lists them')}")

    def _view(self) -> TableView:
        columns = table_columns("name", "label", "other languages", "opt-in")
        rows = [(topic.name, topic.label, ", ".join(topic.labels), _OPT_INS[topic.opt_in]) for topic in self]
        empty = 'No topics yet. wb.topics.save("news", "News") creates one.'
        return TableView(columns, rows, "Topics", empty, "")


_OPT_INS = {"none": "until declined", "double": "after a confirmation"}
