"""DPR: old bases that are still exported, and have no forward (4.52 to 5.24.0)."""

LEFT_OUT = {
    ("DPRPretrainedContextEncoder", "DPRPretrainedQuestionEncoder", "DPRPretrainedReader"): (
        "a base of other classes, without a forward"
    )
}
