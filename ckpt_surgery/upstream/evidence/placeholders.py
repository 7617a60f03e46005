"""The places in body.md that the submitter fills in. No pull request is to be opened while one of them is left."""

MARK = "write this yourself"
"""What the command that opens the pull request searches for."""
HUMAN_PLACE = f"<!-- {MARK} -->"
PLACEHOLDER = f"**TO BE WRITTEN BY YOU** {HUMAN_PLACE}"
