"""Render reports for people and programs: as text, Markdown, JSON, and a page with plots. Nothing is measured here."""
