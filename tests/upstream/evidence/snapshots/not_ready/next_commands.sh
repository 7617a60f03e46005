# Read CONTRIBUTING.md of transformers first: pull requests that their submitter does not understand are closed, and the submitter may be blocked
git -C '/a space/checkout' log --stat 0123456789abcdef0123456789abcdef01234567..ckpt-surgery/all
git -C '/a space/checkout' diff 0123456789abcdef0123456789abcdef01234567 ckpt-surgery/all
git -C '/a space/checkout' worktree add '/a space/transformers-all' ckpt-surgery/all
cd '/a space/transformers-all'
PYTHONPATH=src python utils/checkers.py copies
