"""Watching an automation that runs: figures, how they are shown, and the widget that keeps them fresh."""
