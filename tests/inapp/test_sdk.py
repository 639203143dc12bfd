"""The browser's files: served as they are, importable from anywhere, packed as they are described."""

import json
import re
from pathlib import Path

from api import inapp
from tests.routes.conftest import Service

FOLDER = Path(inapp.__file__).parent / "sdk"


async def test_any_page_may_import_the_sdk(service: Service) -> None:
    response = await service.client.get(f"http://127.0.0.1:{service.port}/inapp/client.js")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/javascript; charset=utf-8"
    assert response.headers["access-control-allow-origin"] == "*"
    assert response.content == (FOLDER / "client.js").read_bytes()


async def test_the_demo_page_only_contacts_its_own_server(service: Service) -> None:
    response = await service.client.get(f"http://127.0.0.1:{service.port}/inapp/demo")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert re.findall(r'(?:src|href)="(?!data:)', response.text) == []


def test_the_package_has_the_files_it_names_and_no_dependencies() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    named = {*package["files"], package["types"][2:], package["exports"]["."]["default"][2:]}
    assert {name for name in named if not (FOLDER / name).is_file()} == set()
    assert package.keys().isdisjoint({"dependencies", "peerDependencies"})
    assert "import " not in (FOLDER / "client.js").read_text().replace("important", "")
