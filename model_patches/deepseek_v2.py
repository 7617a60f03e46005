"""DeepSeek V2: experts chosen greedily, without groups (4.57.6 to 5.24.0)."""

TINY = {"deepseek_v2": {"n_routed_experts": 4, "topk_method": "greedy"}}
