# Read CONTRIBUTING.md of transformers first: pull requests that their submitter does not understand are closed, and the submitter may be blocked
gh issue view https://github.com/huggingface/transformers/issues/41234 --comments
gh issue list --repo huggingface/transformers --state open --search 'gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search '41234 in:body'
gh pr list --repo huggingface/transformers --state open --search 'gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family0 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family1 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family10 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family11 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family12 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family13 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family14 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family15 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family16 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family17 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family18 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family19 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family2 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family3 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family4 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family5 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family6 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family7 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family8 gradient checkpointing'
gh pr list --repo huggingface/transformers --state open --search 'family9 gradient checkpointing'
git -C '/a space/checkout' log --stat 0123456789abcdef0123456789abcdef01234567..ckpt-surgery/all
git -C '/a space/checkout' diff 0123456789abcdef0123456789abcdef01234567 ckpt-surgery/all
git -C '/a space/checkout' worktree add '/a space/transformers-all' ckpt-surgery/all
cd '/a space/transformers-all'
PYTHONPATH=src python -m pytest tests/models/family0 tests/models/family1 tests/models/family10 tests/models/family11 tests/models/family12 tests/models/family13 tests/models/family14 tests/models/family15 tests/models/family16 tests/models/family17 tests/models/family18 tests/models/family19 tests/models/family2 tests/models/family3 tests/models/family4 tests/models/family5 tests/models/family6 tests/models/family7 tests/models/family8 tests/models/family9
PYTHONPATH=src make fix-repo && git status --short
gh repo fork --remote --remote-name fork
git push --set-upstream fork ckpt-surgery/all
! grep -n "write this yourself" '/out/it'"'"'s here/body.md' && gh pr create --repo huggingface/transformers --base main --draft --body-file '/out/it'"'"'s here/body.md'
