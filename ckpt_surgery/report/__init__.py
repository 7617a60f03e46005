"""Reports for people and programs: text, markdown, json, and a page with plots. Nothing is measured here."""
