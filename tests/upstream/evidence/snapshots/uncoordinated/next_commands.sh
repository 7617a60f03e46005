# Read CONTRIBUTING.md of transformers first: pull requests that their submitter does not understand are closed, and the submitter may be blocked
gh issue list --repo huggingface/transformers --state open --search 'gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'clvp gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'zamba2 gradient checkpointing'
git -C '/a space/checkout' log --stat 0123456789abcdef0123456789abcdef01234567..ckpt-surgery/all
git -C '/a space/checkout' diff 0123456789abcdef0123456789abcdef01234567 ckpt-surgery/all
git -C '/a space/checkout' worktree add '/a space/transformers-all' ckpt-surgery/all
cd '/a space/transformers-all'
PYTHONPATH=src python -m pytest tests/models/clvp tests/models/zamba2
PYTHONPATH=src make fix-repo && git status --short
gh issue create --repo huggingface/transformers --web
