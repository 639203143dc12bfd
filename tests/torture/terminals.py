"""What people see of the texts that customers write: displays of the notebook package and CSV for spreadsheets.

Customers write control and format characters, which a terminal obeys, and formulas, which a spreadsheet runs
(`leaks.HOSTILE`). Analysts look at these texts during the run, through any API process, and at everything once at the
end. Output of commands, logs and pulled files are searched in the same way.
"""

import asyncio
import csv
import io
import re
import sys
import unicodedata
from collections.abc import Callable

from tests.torture.automations import FORMULA
from tests.torture.callers import Caller
from tests.torture.leaks import HOSTILE_MARK, OBEYED
from tests.torture.log import ShownText
from workbench import Contact, Workbench
from workbench.errors import WorkbenchError

DISPLAY, CSV = "display", "CSV"
_PAUSES_S = (2.0, 8.0)
_MOST = 3  # findings reported per text
_AROUND = 40  # characters kept before a finding
_CATEGORIES = {character: unicodedata.category(character) for character in map(chr, range(sys.maxunicode + 1))}
_OBEYED = re.compile(
    f"[{re.escape(''.join(character for character, kind in _CATEGORIES.items() if kind in ('Cc', 'Cf')))}]"
)
_LAYOUT = "\n\t"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_TRACEBACK = "Traceback (most recent call last)"
_QUERIES = (
    "SELECT payload ->> 'remark' AS remark, payload FROM app_events WHERE payload ? 'remark' LIMIT 200",
    "SELECT external_id, metadata ->> 'remark' AS remark FROM contacts WHERE metadata ? 'remark' LIMIT 200",
    "SELECT subject, body FROM messages WHERE body LIKE '%owned%' LIMIT 200",
    'SELECT name AS "=name" FROM automations',
)
_HOSTILE_EVENT = {"event": "signup", "payload": {"n": 1, "note": "", "canary": "", "remark": OBEYED[0]}}
_NEWEST = "SELECT id FROM contacts WHERE metadata ? 'remark' ORDER BY updated_at DESC LIMIT 1"


def _contact(wb: Workbench) -> Contact:
    """Return a contact with hostile texts."""
    return wb.contact(*wb.sql(_NEWEST)["id"].to_list())


_DISPLAYS: dict[str, Callable[[Workbench], object]] = {
    "automations": lambda wb: wb.automations,
    "automation": lambda wb: wb.automation(FORMULA),
    "description": lambda wb: wb.automation(FORMULA).describe(),
    "plan": lambda wb: wb.automation(FORMULA).plan(),
    "stats": lambda wb: wb.automation(FORMULA).stats(),
    "versions": lambda wb: wb.automation(FORMULA).versions(),
    "entries": lambda wb: wb.automation("notified").entries(),
    "entry": lambda wb: wb.automation("notified").entries().latest,
    "dead letters": lambda wb: wb.dead_letters(),
    "catalog": lambda wb: wb.catalog,
    "event": lambda wb: wb.catalog["signup"],
    "recent events": lambda wb: wb.events.recent(),
    "rejected events": lambda wb: wb.events.rejected(),
    "misspelt fields": lambda wb: wb.events.misspelt(),
    "contact": _contact,
    "timeline": lambda wb: _contact(wb).timeline,
    "events of a contact": lambda wb: _contact(wb).events(),
    "explanation": lambda wb: _contact(wb).explain(FORMULA),
    "simulation": lambda wb: wb.automation("notified").simulate(_HOSTILE_EVENT, {"walletAddress": f"0x{7:040x}"}),
    "query": lambda wb: wb.sql(_QUERIES[1]),
    "segments": lambda wb: wb.segments,
    "audit": lambda wb: wb.audit(),
    "keys": lambda wb: wb.keys,
    "workbench": lambda wb: wb,
}


def shown(place: str, text: str) -> ShownText:
    """Search a text that a terminal or an editor shows for characters that it obeys, and for a traceback."""
    found = (match for match in _OBEYED.finditer(text) if match[0] not in _LAYOUT)
    wrong = [
        f"{match[0]!a} after {text[max(match.start() - _AROUND, 0) : match.start()]!a}"
        for match, _ in zip(found, range(_MOST), strict=False)
    ]
    return ShownText(place, HOSTILE_MARK in text, [*wrong, *([text[-400:]] if _TRACEBACK in text else [])])


def spreadsheet(text: str) -> ShownText:
    """Search CSV for cells that a spreadsheet runs as formulas."""
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    wrong = [f"the cell {cell!a}" for cell in cells if cell.startswith(_FORMULA_STARTS)]
    return ShownText(CSV, HOSTILE_MARK in text, wrong[:_MOST])


async def look(caller: Caller) -> None:
    """Look at random displays and spreadsheets until cancelled."""
    while True:
        await asyncio.sleep(caller.chance.uniform(*_PAUSES_S))
        await _open_csv(caller, caller.chance.choice(_QUERIES))
        await asyncio.to_thread(_display, caller, caller.chance.choice(list(_DISPLAYS)))


async def look_at_everything(caller: Caller) -> None:
    for query in _QUERIES:
        await _open_csv(caller, query)
    for name in _DISPLAYS:
        await asyncio.to_thread(_display, caller, name)


async def _open_csv(caller: Caller, query: str) -> None:
    body = {"sql": query, "spreadsheet": True}
    answer = await caller.request("POST", "/sql", "SQL", json=body, headers={"accept": "text/csv"})
    if answer is not None:
        caller.log.shown.append(spreadsheet(answer.text))


def _display(caller: Caller, name: str) -> None:
    """Display one object in text form; an error is displayed, too."""
    wb = Workbench(caller.any_url, caller.account.keys["admin"])
    try:
        text = repr(_DISPLAYS[name](wb))
    except WorkbenchError as error:
        text = str(error)
    except Exception as error:  # noqa: BLE001  an error of another kind is a defect of the package, so it is a finding
        text = f"{_TRACEBACK}: {type(error).__name__}: {error}"
    caller.log.shown.append(shown(f"{DISPLAY} of {name}", text))
