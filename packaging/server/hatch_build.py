"""Copies `api`, `sql` and the built site into the wheel; an editable install must use the files of the checkout."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ServerPackages(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {"../../api": "api", "../../sql": "api/_sql"}
            if (Path(self.root) / "../../build/site").is_dir():  # `make wheels` builds it
                build_data["force_include"]["../../build/site"] = "api/_site"
