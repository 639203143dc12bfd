"""Copy `api` and `sql` into the wheel. An editable install only points at the checkout: with a copy, edits would not take effect."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ServerPackages(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {"../../api": "api", "../../sql": "api/_sql"}
