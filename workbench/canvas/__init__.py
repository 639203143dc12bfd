"""The canvas: an automation drawn with the mouse, in step with the same automation in Python.

Python owns the draft. A view sends what changed, node by node; Python writes it into the draft and shows the result to every view, with
what is written on the cards and what stands against publishing. The browser knows no rule of the language.
"""
