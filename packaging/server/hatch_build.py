"""Copies `api` and `sql` into the wheel, but not into an editable install, which must use the files of the checkout."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ServerPackages(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {"../../api": "api", "../../sql": "api/_sql"}
