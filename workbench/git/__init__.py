"""Automations as files in git: `workbench automations pull | plan | apply`."""
