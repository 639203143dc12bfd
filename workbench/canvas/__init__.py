"""The canvas edits an automation with the mouse and stays in step with the same automation in Python.

Python owns the draft. A view sends its changes as patches of single nodes and edges. Python applies them to the draft
and sends every view the result, with the texts of the cards and the diagnostics. The browser knows no rules of the
language.
"""
