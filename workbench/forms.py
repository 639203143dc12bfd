"""Forms for what needs no code: try an event, a funnel, retention, the figures of an automation; and the page of `wb`.

Every form calls the method that a cell would call, shows what the cell would show, and the code of the call. The page
(form.js) only draws fields: which fields there are, their choices and the values of earlier events come from here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec

from workbench import publish
from workbench.automation import Automation, open_automation
from workbench.catalog import Catalog
from workbench.connection import Connection
from workbench.display.payload import python_number
from workbench.display.widgets import Content, FormWindow, show
from workbench.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, WorkbenchError
from workbench.language.codec import MalformedJsonError, decode, encode, printable
from workbench.language.payload_schema import PropertyPath
from workbench.language.responses import PropertiesView
from workbench.reports import Reports

Values: TypeAlias = Mapping[str, str]
"""What the page sends: the text of each field by its name."""

MAX_FUNNEL_STEPS = 5  # of the form; `wb.funnel` takes more
_MAX_SUGGESTIONS = 20
_IDENTIFIERS = ("external_id", "email", "wallet_address")
_PAYLOAD = "payload."  # precedes the names of fields of the payload


class FormInput(msgspec.Struct, frozen=True):
    """An input. `kind`: `choice` of `options`, or an input of type `text` or `number` that suggests the `options`.

    `reloads`: the other fields depend on it.
    """

    name: str
    label: str
    value: str = ""
    options: Sequence[str] = ()
    kind: str = "text"
    required: bool = False
    reloads: bool = False
    help: str = ""


class FormCall(msgspec.Struct, frozen=True):
    """A call of the notebook: the function as the code writes it, and its arguments."""

    code: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}

    def written(self) -> str:
        """Return the code of the call."""
        arguments = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.keywords.items())]
        return f"{self.code}({', '.join(arguments)})"

    def html(self) -> str:
        """Make the call, and return its result as a cell shows it."""
        return str(self.function(*self.arguments, **self.keywords)._repr_html_())


class FormKind(msgspec.Struct, frozen=True):
    """The title and the button of a form, its fields for the values that were chosen so far, and its call."""

    title: str
    submit: str
    fields: Callable[["Forms", Values], Sequence[FormInput]]
    call: Callable[["Forms", Values], FormCall]


class Forms:
    """The forms of one organization: `.event()`, `.funnel()`, `.retention()`, `.automation()` and `.stats()` show one.

    They work where anywidget does: JupyterLab, Jupyter Notebook 7, marimo, VS Code and Colab.
    """

    def __init__(self, reports: Reports, catalog: Catalog, connection: Connection, welcome: Callable[[], str]) -> None:
        self._reports, self._catalog, self._connection, self._welcome = reports, catalog, connection, welcome

    def event(self) -> "ShownForms":
        """Try an event: choose an automation, an event and values, and see what the automation would do."""
        return ShownForms(self, "event")

    def funnel(self) -> "ShownForms":
        """Choose the steps of a funnel."""
        return ShownForms(self, "funnel")

    def retention(self) -> "ShownForms":
        """Choose the events of a retention report."""
        return ShownForms(self, "retention")

    def automation(self) -> "ShownForms":
        """Choose an automation and see it drawn."""
        return ShownForms(self, "automation")

    def stats(self) -> "ShownForms":
        """Choose an automation and see its entries, messages and goal."""
        return ShownForms(self, "stats")

    def page(self) -> "ShownForms":
        """Return all forms in the tabs Explore, Build, Test and Watch."""
        return ShownForms(self, "")

    def answer(self, form: str, request: Content) -> Content:
        """Answer the page that shows one form, or all of them if `form` is empty."""
        match request:
            case {"ask": "open"} if form:
                return {"html": "", "pages": [{"title": "", "html": "", "forms": [_described(form)]}]}
            case {"ask": "open"}:
                overviews = {
                    "Explore": self._catalog._repr_html_,
                    "Build": lambda: publish.list_automations(self._connection)._repr_html_(),
                }
                pages = [
                    {"title": title, "html": _overview(overviews.get(title)), "forms": [*map(_described, names)]}
                    for title, names in _PAGES.items()
                ]
                return {"html": self._welcome(), "pages": pages}
            case {"ask": "fields", "form": str() as name, "values": dict() as values} if name in _FORMS:
                fields = _FORMS[name].fields(self, values)
                note = "" if fields else _NO_AUTOMATION
                return {"fields": msgspec.to_builtins(fields), "note": note}
            case {"ask": "run", "form": str() as name, "values": dict() as values} if name in _FORMS:
                call = _FORMS[name].call(self, values)
                return {"html": call.html(), "code": call.written()}
            case _:
                raise InvalidArgumentError("the page sent an unknown request: reload it")

    # Funnel and retention

    def _funnel_fields(self, values: Values) -> Sequence[FormInput]:
        names = ("", *self._catalog.names)
        steps = [(f"step_{number}", f"Step {number}") for number in range(1, MAX_FUNNEL_STEPS + 1)]
        groups, by, within = self._groups(values.get("step_1", "")), values.get("by", ""), ("1h", "1d", "7d", "30d")
        return [
            *(
                FormInput(step, label, values.get(step, ""), names, "choice", required=number < 2, reloads=number == 0)
                for number, (step, label) in enumerate(steps)
            ),
            FormInput(
                "within", "Within", values.get("within", "7d"), within, required=True, help="from the first step"
            ),
            FormInput("days", "Days", values.get("days", "30"), kind="number", required=True),
            FormInput(
                "by", "Split by", by if by in groups else "", ("", *groups), "choice", help="of step 1, or of contacts"
            ),
        ]

    def _groups(self, event: str) -> list[str]:
        """Return what contacts can be split by: the values in the payloads of an event, and attributes of contacts."""
        attributes: Sequence[PropertyPath] = ()
        with suppress(PermissionDeniedError):
            attributes = msgspec.convert(self._connection.get("/contacts/properties"), PropertiesView).paths
        return [
            *_plain_paths(self._paths(event)),
            "contact.segments",
            *(f"contact.{path}" for path in _plain_paths(attributes)),
        ]

    def _funnel(self, values: Values) -> FormCall:
        chosen = (values.get(f"step_{number}", "") for number in range(1, MAX_FUNNEL_STEPS + 1))
        keywords = {"within": values.get("within", ""), "days": _number(values, "days")}
        keywords |= {"by": values["by"]} if values.get("by") else {}
        return FormCall("wb.funnel", self._reports.funnel, ([name for name in chosen if name],), keywords)

    def _retention_fields(self, _values: Values) -> Sequence[FormInput]:
        names = self._catalog.names
        return [
            FormInput("start", "First event", "", ("", *names), "choice", required=True),
            FormInput("back", "Back with", "", ("", *names), "choice", help="without a choice: any event"),
            FormInput("every", "By", "week", ("day", "week", "month"), "choice"),
            FormInput("periods", "Periods", "8", kind="number", required=True),
        ]

    def _retention(self, values: Values) -> FormCall:
        events = [name for name in (values.get("start", ""), values.get("back", "")) if name]
        keywords = {"every": values.get("every", ""), "periods": _number(values, "periods")}
        return FormCall("wb.retention", self._reports.retention, tuple(events), keywords)

    # Automations

    def _automation_choice(self, values: Values, *, reloads: bool = False) -> list[FormInput]:
        """Return the field that chooses an automation, or no field if there is no automation."""
        names = [row.name for row in publish.list_automations(self._connection)]
        if not names:
            return []
        chosen = values.get("automation", "")
        value = chosen if chosen in names else names[0]
        return [FormInput("automation", "Automation", value, names, "choice", reloads=reloads)]

    def _chosen(self, values: Values) -> tuple[str, Automation]:
        name = values.get("automation", "")
        return f"wb.automation({name!r})", open_automation(self._connection, name)

    def _automation_fields(self, values: Values) -> Sequence[FormInput]:
        return self._automation_choice(values)

    def _automation(self, values: Values) -> FormCall:
        return FormCall("wb.automation", partial(open_automation, self._connection), (values.get("automation", ""),))

    def _stats_fields(self, values: Values) -> Sequence[FormInput]:
        choice = self._automation_choice(values)
        return [*choice, FormInput("days", "Days", "30", kind="number", required=True)] if choice else []

    def _stats(self, values: Values) -> FormCall:
        code, automation = self._chosen(values)
        return FormCall(f"{code}.stats", automation.stats, (), {"days": _number(values, "days")})

    # Trying an event

    def _event_fields(self, values: Values) -> Sequence[FormInput]:
        choice = self._automation_choice(values, reloads=True)
        if not choice:
            return []
        trigger, _ = open_automation(self._connection, choice[0].value)._draft.language()
        kind = values.get("identifier", _IDENTIFIERS[0])
        fields = [
            FormInput("identifier", "Contact by", kind, _IDENTIFIERS, "choice"),
            FormInput(
                "contact", "Contact", values.get("contact", ""), required=True, help="a stored one, or a new one"
            ),
        ]
        if trigger.source is not None:  # a start, or a log of a contract
            return [*choice, *fields]
        starting = [name for name in self._catalog.names if name in trigger.names]
        names = [
            *sorted(trigger.names - set(starting)),
            *starting,
            *(n for n in self._catalog.names if n not in trigger.names),
        ]
        event = values.get("event") if values.get("event") in names else (starting or names or [""])[0]
        return [
            *choice,
            FormInput("event", "Event", event or "", names, "choice", reloads=True),
            *fields,
            *self._payload(event),
        ]

    def _payload(self, event: str | None) -> list[FormInput]:
        """Return a field for each path at the top of the payloads of an event, with the values that were seen."""
        fields = []
        for path in self._paths(event):
            if "." in path.path or "[" in path.path:
                continue
            seen = dict.fromkeys([*(_text(share.value) for share in path.top_values), *map(_text, path.samples)])
            options = [*seen][:_MAX_SUGGESTIONS]
            kinds = " or ".join(_KINDS.get(kind, kind) for kind in path.types)
            fields.append(FormInput(f"{_PAYLOAD}{path.path}", path.path, next(iter(options), ""), options, help=kinds))
        return fields

    def _paths(self, event: str | None) -> Sequence[PropertyPath]:
        with suppress(NotFoundError):  # no such event was received yet
            return self._catalog[event].paths if event else ()
        return ()

    def _event(self, values: Values) -> FormCall:
        code, automation = self._chosen(values)
        identifier = values.get("identifier", "")
        if identifier not in _IDENTIFIERS:
            raise InvalidArgumentError(f"identifier must be one of {', '.join(_IDENTIFIERS)}")
        keywords: dict[str, Any] = {identifier: values.get("contact", "")}
        event = values.get("event")
        if event is None:
            return FormCall(f"{code}.simulate", automation.simulate, (), keywords)
        texts = {
            name.removeprefix(_PAYLOAD): text for name, text in values.items() if name.startswith(_PAYLOAD) and text
        }
        shape = {path.path: path for path in self._catalog[event].paths} if texts else {}
        keywords["payload"] = {name: _value(text, shape.get(name)) for name, text in texts.items()}
        return FormCall(f"{code}.simulate", automation.simulate, (event,), keywords)


_FORMS = {
    "funnel": FormKind("Funnel", "Show the funnel", Forms._funnel_fields, Forms._funnel),
    "retention": FormKind("Retention", "Show who came back", Forms._retention_fields, Forms._retention),
    "automation": FormKind("Look at an automation", "Show it", Forms._automation_fields, Forms._automation),
    "event": FormKind("Try an event", "Simulate", Forms._event_fields, Forms._event),
    "stats": FormKind("Figures of an automation", "Show them", Forms._stats_fields, Forms._stats),
}
_PAGES = {"Explore": ("funnel", "retention"), "Build": ("automation",), "Test": ("event",), "Watch": ("stats",)}
_NO_AUTOMATION = 'There is no automation yet. Save one first: wb.automation("Thanks").on("deposit")….save()'
_KINDS = {"string": "text", "boolean": "true or false", "array": "a list, as JSON", "object": "JSON"}


class ShownForms:
    """What a cell displays: one form, or all forms in tabs."""

    def __init__(self, forms: Forms, name: str) -> None:
        self._forms, self._name = forms, name

    def _display_(self) -> FormWindow:  # marimo
        return FormWindow(lambda request: self._forms.answer(self._name, request))

    def _ipython_display_(self) -> None:
        show(self._display_(), "")

    def __repr__(self) -> str:
        return printable(f"A form: {_FORMS[self._name].title}" if self._name else "The forms of Event Workbench")


def _described(name: str) -> Content:
    return {"name": name, "title": _FORMS[name].title, "submit": _FORMS[name].submit}


def _overview(show: Callable[[], str] | None) -> str:
    # The welcome says what the key may not do, or that the server is away; forms say it again when they are used.
    with suppress(WorkbenchError):
        return show() if show is not None else ""
    return ""


def _number(values: Values, name: str) -> int:
    text = values.get(name, "")
    if not text.strip().isdecimal():
        raise InvalidArgumentError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _plain_paths(paths: Sequence[PropertyPath]) -> list[str]:
    """Return the paths with texts, numbers or booleans that are in no list."""
    return [path.path for path in paths if "[" not in path.path and path.types.keys() - {"object", "array"}]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _value(text: str, path: PropertyPath | None) -> Any:
    """Return the value that a text stands for: text where only texts were seen, else JSON if it is some."""
    if path is not None and [*path.types] == ["string"]:
        return text
    try:
        return python_number(decode(text.encode()))
    except MalformedJsonError:
        return text
