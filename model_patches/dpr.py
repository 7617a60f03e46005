"""DPR: old base classes without a forward that are still exported (transformers 4.52 to 5.24.0)."""

LEFT_OUT = {
    ("DPRPretrainedContextEncoder", "DPRPretrainedQuestionEncoder", "DPRPretrainedReader"): (
        "a base of other classes, without a forward"
    )
}
